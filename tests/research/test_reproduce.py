"""The sceptic's command at the smallest size: every experiment runs, a kill is survived, every claim is judged."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from scipy import stats

from research import reproduce as module
from research.claims import (
    ALL_SEEDS,
    CHECK,
    DEPENDS,
    LEVEL,
    LOOKS,
    Claim,
    Results,
    counted,
    judge,
    judge_runs,
    p_of,
    size,
)
from research.grid import CURVES, Experiment, Job, cost, experiments, run_grid, summary
from research.measure import gradient_by_step, noise_after_a_step, rollout_distances
from research.run_log import RunLog
from sage_grpo.config import ConfigError, load_recipe
from sage_grpo.core.loop import Loop
from sage_grpo.data.prompts import open_prompts
from sage_grpo.lab.shapes.evaluate import Evaluation
from sage_grpo.lab.shapes.world import all_prompts
from sage_grpo.statistics import effect
from sage_grpo.training.build import build_model, build_rewards

MATCHED = {"flow": 0.6, "sage": 0.5}


@pytest.mark.parametrize("name", list(experiments(MATCHED)))
def test_every_experiment_is_a_valid_recipe(name, tmp_path):
    experiment = experiments(MATCHED)[name]
    config = Job(name, experiment, 3, 70, 4, tmp_path).config
    assert config.seed == 3
    assert config.rollouts % config.policy.batch_size == 0  # the trainer refuses others
    if experiment.equal_cost:
        budget = 70 * cost(load_recipe("lab-paper"))
        assert 0 <= budget - config.run.iterations * cost(config) < cost(config)
    else:
        assert config.run.iterations == 70


def test_a_changed_experiment_is_another_file(tmp_path):
    grid = experiments(MATCHED)
    job = Job("kl-none", grid["kl-none"], 0, 2, 8, tmp_path)
    others = [replace(job, samples=9), replace(job, iterations=3), replace(job, experiment=grid["kl-fixed"])]
    assert len({job.key, *(other.key for other in others)}) == 4
    assert replace(job, out=tmp_path / "elsewhere").key == job.key


@pytest.mark.slow
def test_a_failure_is_told_before_the_rest_is_run(tmp_path):
    broken = Experiment(("policy.batch_size=7",))
    jobs = [
        Job("broken", broken, 0, 1, 2, tmp_path),
        *(Job("kl-none", Experiment(), s, 1, 2, tmp_path) for s in range(9)),
    ]
    with pytest.raises(ConfigError, match="batches of 7"):
        run_grid(jobs, tmp_path, workers=1, console=Console(quiet=True))
    assert len(RunLog(tmp_path / "runs.jsonl").read()) < 4


@pytest.mark.slow
def test_a_job_is_run_once(tmp_path):
    job = Job("kl-none", experiments(MATCHED)["kl-none"], 0, 2, 8, tmp_path)
    (result,) = run_grid([job], tmp_path, workers=1, console=Console(quiet=True))
    assert set(result["evaluation"]) >= {"reward", "distance", "accuracy", "diversity"}
    assert [step for step, _ in result["curves"]["reward/mean"]] == [1, 2]
    before = (tmp_path / "runs.jsonl").stat().st_mtime_ns
    assert run_grid([job], tmp_path, workers=1, console=Console(quiet=True)) == [result]
    assert (tmp_path / "runs.jsonl").stat().st_mtime_ns == before
    assert not list((tmp_path / "work").glob("*"))  # what is not needed is not kept


def test_runs_of_other_rewards_are_judged_by_one_measure():
    """The hacking run is paid for looks alone; its gain over the base is in the base's units all the same."""
    rows = torch.tensor([[1.0, 2.0, 3.0], [0.0, 4.0, -1.0]])
    zeros, right = torch.zeros(2), torch.ones(2, 3, dtype=torch.bool)
    found = Evaluation(["a", "b"], torch.zeros(2, 1, 1, 1, 3), rows, zeros, right, 1.0, 1.0)
    assert summary(found)["reward"] == (0.5 + 1.0 + 3.0 + 2.0 - 1.0) / 2


def fake_run(name, seed, gain):
    curve = [[i, 1.0 + gain + 0.01 * seed] for i in range(1, 21)]
    evaluation = {
        "reward": gain + 0.1 * seed,
        "distance": 0.4 - 0.1 * gain,
        "diversity": 0.3,
        "accuracy": 0.5 + 0.1 * gain,
        "scores": [gain, 0, 0],
    }
    return {
        "name": name,
        "seed": seed,
        "evaluation": evaluation,
        "curves": dict.fromkeys(CURVES, curve),
        "alarms": ["x"] if name == "hacking" else [],
        "cpu_seconds": 1.0,
    }


@pytest.mark.slow
def test_claims_and_figures_from_known_answers(tmp_path, monkeypatch):
    """Planted effects come out with the right verdicts, and every figure is drawn."""
    gains = {"kl-moving": 1.0, "kl-fixed": 0.0, "kernel-sage": 1.0, "kl-none": 2.0, "best": 3.0}
    names = experiments(MATCHED)
    swings = {"matched-flow": 0.6}  # from seed to seed: what few of them cannot tell

    def gain(name, seed):
        return gains.get(name, 0.5) + 0.001 * seed**2 + swings.get(name, 0.0) * (-1) ** seed

    asked = []

    def answer(jobs, *_):
        asked.append({(job.name, job.seed) for job in jobs[1:]})
        return [base, *(fake_run(job.name, job.seed, gain(job.name, job.seed)) for job in jobs[1:])]

    direct = {
        "noise": {k: {"sigma": [0.5, 0.4], "theory": [1.0, 1.1], "measured": [1.02, 1.1]} for k in ("sage", "flow")},
        "gradient": {
            kind: {"sigma": [0.9, 0.5], "norm": norm, "scale": [0.1, 1.0], "equalizer": [1, 1]}
            for kind, norm in (("raw", [0.01, 1.0]), ("equalized", [0.5, 1.0]))
        },
        "quality": {
            f"{k}-{e}": [0.5 + 0.01 * i, 0.6, 0.55 + 0.02 * i]
            for i, k in enumerate(("sage", "flow", "dance", "cps", "precise"))
            for e in ("noisy", "clean")
        },
        "matched": MATCHED,
    }
    looks = []

    def look(out, again, *_):
        looks.append(dict(again))
        return direct

    monkeypatch.setattr(module, "measure_directly", look)
    base = {"reward": 0.0, "distance": 0.5, "diversity": 0.4, "accuracy": 0.5, "scores": [0, 0, 0]}
    monkeypatch.setattr(module, "run_grid", answer)
    claims = module.reproduce(tmp_path, seeds=20, iterations=20, samples=4, console=Console(quiet=True))
    first, second, third = asked
    assert first == {(name, seed) for name in names for seed in range(20 if name in ALL_SEEDS else 5)}
    more = {name for name, _ in second - first}
    assert {"matched-flow", "kernel-sage"} <= more
    of_rollouts = ("flow-noisy", "sage-noisy", "flow-clean", "sage-clean")
    assert looks == [{}, dict.fromkeys(of_rollouts, 1), dict.fromkeys(of_rollouts, 2)]
    assert not more & {"kl-fixed", "hacking", "lr-0.001-videos-32"}  # decided, or no claim rests on them
    assert second - first == {(name, seed) for name in more - {*ALL_SEEDS} for seed in range(5, 10)}
    open_still = {name for name, _ in third - second}
    assert "matched-flow" in open_still < more
    assert third - second == {(name, seed) for name in open_still for seed in range(10, 20)}
    verdicts = {claim.statement: claim.verdict for claim in claims}
    assert len(claims) >= 10
    assert verdicts["A fixed anchor underfits: a moving one earns more"] == "reproduced"
    assert verdicts["Dual KL earns more reward than no KL"] == "not reproduced"
    assert verdicts["Dual KL earns more reward than moving KL alone"] == "equivalent"
    assert verdicts["… and than cps at equal exploration"] == DEPENDS  # whatever its runs say
    (ours,) = (v for statement, v in verdicts.items() if statement.startswith("Our recipe `lab-fast` earns more"))
    assert ours == "reproduced"
    for name in ("figure_3", "figure_4", "figure_7", "figure_8", "figure_9", "frontier"):
        assert (tmp_path / f"{name}.png").stat().st_size > 5000
    assert (tmp_path / "claims.md").read_text().count("\n|") >= 11
    seeds = {name: range(20 if name in {*open_still, *ALL_SEEDS} else 10 if name in more else 5) for name in names}
    runs = [fake_run(name, seed, gain(name, seed)) for name in names for seed in seeds[name]]
    assert judge(Results(runs, base), direct) == claims
    sizes = {}
    for claim in claims:
        if claim.test == "paired t over seeds":
            sizes[claim.statement] = [len(seeds[name]) for name in claim.rests_on]
            assert claim.measured.endswith(f"n = {min(sizes[claim.statement])}")  # pairs of the seeds that both have
    assert any(len(set(counts)) > 1 for counts in sizes.values())


def test_the_page_has_the_claims_on_record_and_none_is_open():
    folder = Path(__file__).parents[2] / "docs" / "claims"
    table = (folder / "claims.md").read_text("utf-8")
    assert table.strip() in (folder.parent / "claims.md").read_text("utf-8")
    rows = [line for line in table.splitlines()[2:] if line.startswith("|")]
    assert len(rows) >= 23
    assert not [row for row in rows if "undecided" in row]
    runs = RunLog(folder / "runs.jsonl").read().values()
    (base,) = (run for run in runs if "accuracy" in run)
    results = Results([run for run in runs if "evaluation" in run], base)
    of_runs = [claim.row() for claim in judge_runs(results)]
    assert of_runs == rows[-len(of_runs) :]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([0.1, 0.11, 0.09], "larger"),
        ([-0.1, -0.11, -0.09], "larger"),
        ([0.01, 0.0, 0.02], "smaller"),
        ([0.2, 0], "open"),
    ],
)
def test_an_effect_is_compared_with_the_smallest_that_matters(values, said):
    assert size(effect(values), 0.05) == said


def test_ps_are_scipys():
    values = [0.3, -0.1, 0.2, 0.5]
    assert p_of(effect(values)) == pytest.approx(stats.ttest_1samp(values, 0).pvalue)


def test_claims_of_the_paper_are_counted_apart_from_ours():
    sources = {"Fig. 3": "reproduced", "Table 2": "equivalent", "ours": "reproduced"}
    claims = [Claim("s", source, "m", CHECK if source == "ours" else "t", said) for source, said in sources.items()]
    assert counted(claims) == (
        "The paper’s claims, 2: 1 reproduced, 1 equivalent. Checks of the implementation among them: 0. "
        "Our own claims, 1: 1 reproduced. Checks of the implementation among them: 1."
    )


def test_figures_compare_equal_seeds():
    runs = [fake_run("a", seed, 0.0) for seed in range(3)] + [fake_run("b", seed, 0.0) for seed in (1, 2, 3)]
    runs.append(fake_run("c", 9, 0.0))
    found = Results(runs, {}).common(["a", "b"])
    assert {name: sorted(seeds) for name, seeds in found.runs.items()} == {"a": [1, 2], "b": [1, 2]}


def test_three_looks_err_in_one_case_of_twenty():
    """Where there is no effect: by simulation, against the level that one look alone would need."""
    rng = np.random.default_rng(0)
    values = rng.standard_normal((10_000, 20))
    sizes = [int(20 * share) for share in LOOKS]
    assert sizes == [5, 10, 20]

    def says(level):
        found = np.zeros(len(values), dtype=bool)
        for n in sizes:
            t = values[:, :n].mean(1) / (values[:, :n].std(1, ddof=1) / n**0.5)
            found |= abs(t) > stats.t.ppf((1 + level) / 2, n - 1)
        return float(found.mean())

    assert says(LEVEL) == pytest.approx(0.05, abs=0.007)  # three standard errors
    assert says(0.95) > 0.09


@pytest.mark.slow
def test_direct_measurements_agree_with_theory():
    """A small sample already lies on the closed form, and the equalizer closes the spread."""
    found = noise_after_a_step("sage", clips=32)
    assert all(abs(m / t - 1) < 0.15 for m, t in zip(found["measured"], found["theory"], strict=True))
    raw, equal = (gradient_by_step("sage", equalize=e, iterations=1)["norm"] for e in (False, True))
    assert max(raw) / min(raw) > 2 * max(equal) / min(equal)


@pytest.mark.slow
def test_noise_left_by_the_last_step_is_seen():
    noisy, clean = (rollout_distances("dance", noisy_end=n, count=16) for n in (True, False))
    assert sum(noisy) > sum(clean)


@pytest.mark.slow
def test_passes_are_counted_right():
    """By calls of the network, not by our own formula: experiments of equal cost rest on it.

    A pass that keeps a graph goes backward as well, which costs two forward passes.
    """
    for recipe in ("lab-fast", "lab-paper"):
        config = load_recipe(recipe, ["gauge.every=0", "run.trackers=[]"])
        model, reward, count = build_model(config), build_rewards(config)[0], []

        def passed(module, inputs, output, count=count):
            count.append(len(output) * (3 if output.requires_grad else 1))

        model.module.register_forward_hook(passed)
        optimizer = torch.optim.SGD(model.module.parameters(), lr=0.0)
        loop = Loop(model, reward, open_prompts(all_prompts()), config, optimizer)
        loop._checked = True  # the gate looks once per run, not once per iteration
        loop.bank.save("anchor")
        loop.updates = 1  # in the update that begins with its renewal the anchor is not asked
        loop.iterate()
        assert sum(count) == cost(config)
