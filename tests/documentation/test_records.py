"""Every measured number of README, the first page and the results page is computed again from the records.

A sentence below has a place for each of its numbers, and a function of a record that fills them. What is left of the
pages when these sentences are taken out may hold no number but those that nobody measured.
"""

import json
import re
from collections import Counter
from functools import cache
from statistics import fmean

import pytest

from documentation.blocks import ROOT
from research.claims import CHECK, Results, judge_runs
from research.guidance import flags, of_videos
from research.outside import Verdict
from research.outside import verdicts as verdicts_outside
from research.run_log import RunLog
from sage_grpo.statistics import effect, share

DOCS = ROOT / "docs"
PAGES = ("README.md", "docs/index.md", "docs/results.md")
NUMBER = re.compile(r"\d[\d.,]*\w*")
# Numbers that are names and settings.
SETTINGS = ("guidance 2", "guidance 4")


def results_of(page: str) -> str:
    """What a page says of results: all of the results page; of the others, the bullets before they say how to start."""
    text = (ROOT / page).read_text("utf-8")
    return plain(
        text if page.endswith("results.md") else re.split(r"\n## |\nAfter the paper", text[text.index("\n- **") :])[0]
    )


def plain(text: str) -> str:
    """As it is read: without pictures, marks and addresses, and with one kind of space."""
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)", "", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return re.sub(r"\s+", " ", re.sub(r"[*`]", "", text))


def percent(found: tuple[float, float, float]) -> tuple[str, ...]:
    return tuple(f"{100 * value:.0f}" for value in found)


def signed(value: float, digits: int = 3) -> str:
    return f"{value:+.{digits}f}".replace("-", "−")


@cache
def laboratory() -> dict[str, dict]:
    """Evaluations of the base and of runs of recipe `lab`, by name; each by guidance scale."""
    return {run["name"]: run["guidance"] for run in RunLog(DOCS / "laboratory" / "runs.jsonl").read().values()}


def base(guidance: str, name: str = "followed", **kind: bool) -> tuple[str, ...]:
    return percent(of_videos(flags(laboratory()["base"][guidance], name), **kind))


def trained(name: str = "followed", **kind: bool) -> tuple[str, ...]:
    """Of all seeds together, with guidance as in training."""
    runs = [found["2"] for run, found in laboratory().items() if run != "base"]
    return percent(of_videos([mark for found in runs for mark in flags(found, name)], **kind))


def diversity() -> tuple[str, ...]:
    runs = [found["2"]["diversity"] for run, found in laboratory().items() if run != "base"]
    return (f"{fmean(runs) / laboratory()['base']['2']['diversity']:.2f}",)


def first_base(guidance: str) -> tuple[str, ...]:
    """Of the base before: its intervals count videos."""
    rows = RunLog(DOCS / "laboratory" / "first.jsonl").read().values()
    (found,) = (row["guidance"] for row in rows if row["name"] == "base")
    return percent(share(flags(found[guidance])))


@cache
def outside(treated: str = "with", control: str = "without") -> dict[tuple[int, str], Verdict]:
    """Effects of a setting outside the window against another, by width and measure."""
    rows = list(RunLog(DOCS / "outside" / "runs.jsonl").read().values())
    return {(found.width, found.measure): found for found in verdicts_outside(rows, treated, control)}


def penalized(measure: str, *settings: str) -> tuple[str, ...]:
    found = outside(*settings)[96, measure].effect
    return signed(found.mean), signed(found.low), signed(found.high)


def points_lost() -> tuple[str, ...]:
    found = outside()[96, "followed"].effect
    return tuple(f"{-100 * value:.1f}" for value in (found.mean, found.high, found.low))


def limited(measure: str) -> tuple[str, ...]:
    """Of an adapter that acts at trained noise levels alone, against the penalty."""
    return penalized(measure, "adapter", "with")


def points_won() -> tuple[str, ...]:
    found = outside("adapter", "with")[96, "followed"].effect
    return tuple(f"{100 * value:.1f}" for value in (found.mean, found.low, found.high))


@cache
def objectives() -> dict[str, dict[int, dict]]:
    """Runs by name and seed."""
    runs: dict[str, dict[int, dict]] = {}
    for run in RunLog(DOCS / "objectives" / "runs.jsonl").read().values():
        runs.setdefault(run["name"], {})[run["seed"]] = run
    return runs


def guided_gain() -> tuple[str, ...]:
    """Of GRPO with guidance in rollouts and judging, from before its first update to its end."""
    found = effect([run["reward"][-1] - run["reward"][0] for run in objectives()["guided-grpo"].values()])
    return signed(found.mean), signed(found.low), signed(found.high)


def above_grpo(name: str) -> tuple[str, ...]:
    """Reward of an objective above GRPO with one update, on equal seeds."""
    ours, grpo = objectives()[name], objectives()["grpo"]
    assert ours.keys() == grpo.keys()
    found = effect([ours[seed]["evaluation"]["reward"] - grpo[seed]["evaluation"]["reward"] for seed in sorted(ours)])
    return f"{found.mean:.2f}", f"{found.low:.2f}", f"{found.high:.2f}"


def less_diverse(name: str) -> tuple[str, ...]:
    ours, grpo = (fmean(run["evaluation"]["diversity"] for run in objectives()[key].values()) for key in (name, "grpo"))
    return (f"{100 * (1 - ours / grpo):.0f}",)


def read_text(key: str) -> tuple[str, ...]:
    found = effect([run["evaluation"][key] for run in objectives()["text-grpo"].values()])
    return percent((found.mean, found.low, found.high))


def characters() -> tuple[str, ...]:
    runs = objectives()["text-grpo"].values()
    return tuple(f"{100 * fmean(run['reward'][place] for run in runs):.0f}" for place in (0, -1))


@cache
def saving(name: str) -> dict:
    """Of `docs/efficiency/results.json`, which has means and intervals over seeds; runs were not kept."""
    found = json.loads((DOCS / "efficiency" / "results.json").read_text())
    (row,) = (row for row in found["settings"] if row["setting"] == name)
    (paper,) = (row for row in found["settings"] if row["setting"] == "paper")
    passes = found["passes"] / row["times_fewer"][0]
    return row | {"videos": passes / row["passes_per_video"] / (found["passes"] / paper["passes_per_video"])}


def fewer(name: str) -> tuple[str, ...]:
    return tuple(f"{value:.1f}" for value in saving(name)["times_fewer"])


def arrived(name: str) -> tuple[str, ...]:
    return str(saving(name)["reached"]), str(saving(name)["seeds"])


def lost(name: str) -> tuple[str, ...]:
    """Points of prompts followed, at the reward of `lab-paper`."""
    mean, low, high = saving(name)["against_paper_at_its_reward"]["accuracy"]
    return percent((-mean, -high, -low))


def videos(name: str) -> tuple[str, ...]:
    return (f"{saving(name)['videos']:.1f}",)


@cache
def claims() -> Results:
    runs = RunLog(DOCS / "claims" / "runs.jsonl").read().values()
    (base,) = (run for run in runs if "accuracy" in run)
    return Results([run for run in runs if "evaluation" in run], base)


def rang(name: str) -> tuple[str, ...]:
    runs = claims().runs[name].values()
    return str(sum(bool(run["alarms"]) for run in runs)), str(len(runs))


def first_alarm() -> tuple[str, ...]:
    runs = claims().runs["hacking"].values()
    first = min(int(re.match(r"iteration (\d+)", run["alarms"][0])[1]) for run in runs)
    return str(first), str({run["iterations"] for run in runs}.pop())


@cache
def verdicts() -> list[dict]:
    """All claims of results.json; those about training judged again from their runs."""
    on_record = json.loads((DOCS / "claims" / "results.json").read_text())["claims"]
    again = {claim.statement: claim.verdict for claim in judge_runs(claims())}
    assert {c["statement"]: c["verdict"] for c in on_record if c["statement"] in again} == again
    return on_record


def counted() -> tuple[str, ...]:
    """The paper's own claims, how many have each verdict, and how many are checks of the implementation."""
    paper = [claim for claim in verdicts() if not claim["source"].startswith("ours")]
    found = Counter(claim["verdict"] for claim in paper)
    checks = sum(claim["test"] == CHECK for claim in paper)
    assert found.total() == sum(found[name] for name in ("reproduced", "equivalent", "not reproduced"))
    return *map(str, (len(paper), *(found[v] for v in ("reproduced", "equivalent", "not reproduced")))), str(checks)


SENTENCES = (
    ("prompts followed rise from {} % [{}, {}] to {} % [{}, {}]", lambda: base("2") + trained()),
    (
        "flicker or halt falls from {} % [{}, {}] to {} % [{}, {}]",
        lambda: base("2", "flawed") + trained("flawed"),
    ),
    (
        "from {} % [{}, {}] to {} % [{}, {}]",
        lambda: base("2", kept_out_only=True) + trained(kept_out_only=True),
    ),
    ("keep {} of their diversity", diversity),
    (
        "follows {} % [{}, {}] of its prompts without guidance, {} % [{}, {}] with guidance 2 and {} % [{}, {}] with",
        lambda: base("1") + base("2") + base("4"),
    ),
    ("that base with guidance 2 follows {} % [{}, {}] already", lambda: first_base("2")),
    (
        "distance {} [{}, {}] at the same passes, diversity {} [{}, {}]",
        lambda: penalized("distance") + penalized("diversity"),
    ),
    ("costs {} points of prompts followed [{}, {}]", points_lost),
    (
        "against the penalty, distance {} [{}, {}], diversity {} [{}, {}]",
        lambda: limited("distance") + limited("diversity"),
    ),
    ("{} points more prompts followed [{}, {}]", points_won),
    ("no reward that can be shown: {} [{}, {}]", guided_gain),
    ("{} of {} seeds earn its reward", lambda: arrived("kl-share")),
    ("{} of {} seeds reach its reward", lambda: arrived("kl-share")),
    ("with {} times fewer passes of the network [{}, {}]", lambda: fewer("kl-share")),
    ("{} points fewer prompts [{}, {}]", lambda: lost("kl-share")),
    ("made {} times more videos", lambda: videos("kl-share")),
    ("{} of 10 do, with {} times fewer [{}, {}]", lambda: (arrived("fast")[0], *fewer("fast"))),
    ("{} points fewer prompts are followed [{}, {}], or {} [{}, {}]", lambda: lost("kl-share") + lost("fast")),
    ("About {} or {} times as many videos", lambda: videos("kl-share") + videos("fast")),
    ("with two updates per rollout earns {} [{}, {}] more reward than GRPO", lambda: above_grpo("twice-nft")),
    ("nft with two earns {} [{}, {}] more than grpo", lambda: above_grpo("twice-nft")),
    ("keeps {} % less diversity", lambda: less_diverse("twice-nft")),
    ("AWM earns {} [{}, {}] more, with {} % less", lambda: above_grpo("twice-awm") + less_diverse("twice-awm")),
    ("awm with two {} [{}, {}]", lambda: above_grpo("twice-awm")),
    ("keep {} % and {} % less diversity", lambda: less_diverse("twice-nft") + less_diverse("twice-awm")),
    ("characters read correctly rise from {} % to {} %", characters),
    ("whole numbers reach {} % [{}, {}]", lambda: read_text("accuracy")),
    ("never part of the reward reads {} % [{}, {}]", lambda: read_text("second_reader")),
    ("an alarm in {} of {} such runs, at iteration {} of {}", lambda: rang("hacking") + first_alarm()),
    ("a learning rate of 1e-3 and 32 videos per iteration it rings in {} of {}", lambda: rang("lr-0.001-videos-32")),
    ("Of the paper’s {} claims, {} are reproduced, {} equivalent and {} not; {} of them are checks", counted),
)


@cache
def said() -> tuple[tuple[str, str], ...]:
    """Sentences with places for numbers, and as the records fill them."""
    return tuple((sentence, sentence.format(*values())) for sentence, values in SENTENCES)


def problems(text: str) -> list[str]:
    """Sentences whose numbers differ from the records, and numbers without a record."""
    found = []
    for sentence, right in said():
        shape = re.escape(sentence).replace(r"\{\}", r"[+−]?[\d.]*\d")
        for written in re.findall(shape, text, re.IGNORECASE):
            if written.lower() != right.lower():
                found.append(f"{written!r}; the records say {right!r}")
        text = re.sub(shape, "", text, flags=re.IGNORECASE)
    for setting in SETTINGS:
        text = text.replace(setting, "")
    return found + [f"no record: …{text[max(0, n.start() - 60) : n.end() + 20]}…" for n in NUMBER.finditer(text)]


@pytest.mark.parametrize("page", PAGES)
def test_every_number_has_a_record_and_equals_it(page):
    assert problems(results_of(page)) == []


def test_every_sentence_is_on_a_page():
    """So that a sentence which was rewritten is not checked in vain."""
    pages = " ".join(map(results_of, PAGES)).lower()
    assert [right for _, right in said() if right.lower() not in pages] == []


@pytest.mark.parametrize(
    ("page", "right", "wrong"),
    [
        ("README.md", "3.6 times fewer", "4.6 times fewer"),
        ("docs/results.md", "[−0.030, +0.049]", "[+0.030, +0.049]"),
        ("docs/results.md", "[94, 98]", "[95, 98]"),
        ("docs/results.md", "9 of 10 do", "10 of 10 do"),
        ("docs/results.md", "It is cheaper", "It is 7 times cheaper"),
    ],
)
def test_a_changed_number_is_found(page, right, wrong):
    text = results_of(page)
    assert right in text
    assert problems(text.replace(right, wrong))
