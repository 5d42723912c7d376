"""`sage-grpo lab`: train the small generator, say what improved with its error, and show it."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor

from sage_grpo.config import RecipeConfig, load_recipe
from sage_grpo.lab.shapes.evaluate import Evaluation, evaluate, evaluate_run
from sage_grpo.report.page import Headline, Page, PageTable, VideoPair, write_page
from sage_grpo.report.svg import Chart, Curve
from sage_grpo.runs.folder import RunFolder
from sage_grpo.statistics import Effect, effect
from sage_grpo.training.build import build_model
from sage_grpo.training.trackers import read_metrics
from sage_grpo.training.trainer import Trainer
from sage_grpo.videos import contact_sheet, mp4_bytes

SHOWN = 8  # pairs of videos in the report


@dataclass(frozen=True)
class LabResult:
    reward_delta: float
    reward_se: float
    samples: int
    seconds: float
    reward_low: float
    reward_high: float
    accuracy_before: float
    accuracy_after: float
    distance_before: float
    distance_after: float
    diversity_before: float
    diversity_after: float
    iterations: int
    report: str

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def run_lab(out: Path, *, iterations: int | None, samples: int, seed: int, console: Console) -> LabResult:
    """Train by the shipped recipe, evaluate before and after on the same fresh seeds, write the report."""
    started = time.perf_counter()
    overrides = [f"seed={seed}", f"run.out={out}", "run.sample_every=0"]
    overrides += [f"run.iterations={iterations}"] if iterations else []
    config = load_recipe("lab", overrides)
    console.print(f"1/3 scoring {samples} videos of the base model", highlight=False)
    before = evaluate(build_model(config), config, samples)
    console.print(f"2/3 training for {config.run.iterations} iterations", highlight=False)
    trainer = Trainer(config=config, console=console)
    trainer.train()
    console.print("3/3 scoring the trained model on the same prompts and seeds", highlight=False)
    after = evaluate_run(trainer.loop, config, samples)
    gain = effect((after.reward - before.reward).tolist())
    seconds = time.perf_counter() - started
    report = out / "report.html"
    result = LabResult(
        gain.mean,
        gain.se,
        samples,
        seconds,
        gain.low,
        gain.high,
        before.accuracy.mean().item(),
        after.accuracy.mean().item(),
        before.distance.mean().item(),
        after.distance.mean().item(),
        before.diversity,
        after.diversity,
        trainer.loop.iteration,
        str(report),
    )
    write_page(make_page(result, before, after, config, gain), report)
    before_after_sheet(before, after, out / "before_after.png")
    return result


def most_telling(gains: Tensor) -> list[int]:
    """Pairs at even places of the order by gain, so that the failures are shown too."""
    order = gains.argsort(stable=True).tolist()
    places = torch.linspace(0, len(order) - 1, min(SHOWN, len(order))).round().long().tolist()
    return [order[i] for i in reversed(places)]


def before_after_sheet(before: Evaluation, after: Evaluation, path: Path) -> None:
    rows = []
    for i in most_telling(after.reward - before.reward)[:5]:
        rows += [(f"{name}: {before.prompts[i]}", e.videos[i]) for name, e in (("before", before), ("after", after))]
    contact_sheet(path, rows, title="the same prompt and seed, before and after training")


def comparison(before: Evaluation, after: Evaluation) -> list[list[str]]:
    """Rows: what, before, after, paired difference with interval."""
    columns = {
        "reward (0.5·VQ + 0.5·MQ + TA)": (before.reward, after.reward),
        "VQ, visual quality": (before.scores[:, 0], after.scores[:, 0]),
        "MQ, motion quality": (before.scores[:, 1], after.scores[:, 1]),
        "TA, text alignment": (before.scores[:, 2], after.scores[:, 2]),
        "held out: all of the prompt right": (before.accuracy, after.accuracy),
        "held out: shape right": (before.correct[:, 0].double(), after.correct[:, 0].double()),
        "held out: colour right": (before.correct[:, 1].double(), after.correct[:, 1].double()),
        "held out: direction right": (before.correct[:, 2].double(), after.correct[:, 2].double()),
        "held out: distance to the manifold": (before.distance, after.distance),
    }
    return [*paired_rows(columns), diversity_row(before.diversity, after.diversity)]


def paired_rows(columns: dict[str, tuple[Tensor, Tensor]]) -> list[list[str]]:
    """Of values before and after, one a video: what, before, after, paired difference with interval."""
    rows = []
    for name, (old, new) in columns.items():
        change = effect((new - old).tolist())
        difference = f"{change.mean:+.3f} [{change.low:+.3f}, {change.high:+.3f}]"
        rows.append([name, f"{old.mean():.3f}", f"{new.mean():.3f}", difference])
    return rows


def diversity_row(before: float, after: float) -> list[str]:
    return ["held out: diversity", f"{before:.3f}", f"{after:.3f}", f"{after - before:+.3f}"]


def curve_reader(folder: str) -> Callable[[str, str], Curve]:
    """Curves of a run by the key of its log and a name to show."""
    log = read_metrics(RunFolder(Path(folder)).log)

    def curve(key: str, name: str) -> Curve:
        rows = [row for row in log if row.get(key) is not None]
        return Curve(name, [row["step"] for row in rows], [row[key] for row in rows])

    return curve


def make_page(result: LabResult, before: Evaluation, after: Evaluation, config: RecipeConfig, gain: Effect) -> Page:
    curve = curve_reader(config.run.out)
    charts = [
        Chart(
            "Reward of the rollouts",
            "iteration",
            "standard deviations of the base",
            [curve("reward/mean", "reward")],
            note="Rollouts explore with noise and see a few prompts at a time; the table is on fresh videos.",
        ),
        Chart(
            "Its three parts",
            "iteration",
            "standard deviations of the base",
            [curve(f"reward/{name}", name) for name in ("VQ", "MQ", "TA")],
        ),
        Chart(
            "Distance of the policy",
            "iteration",
            "KL per element",
            [curve("kl_moving", "to the moving anchor"), curve("drift/kl_initial", "to the initial policy")],
        ),
        Chart(
            "Drift, relative to the start",
            "iteration",
            "ratio",
            [curve("drift/base_error", "base model's error"), curve("drift/diversity", "diversity in a group")],
        ),
    ]
    pairs = [
        VideoPair(
            before.prompts[i],
            mp4_bytes(before.videos[i]),
            mp4_bytes(after.videos[i]),
            f"before: reward {before.reward[i]:.2f}",
            f"after: reward {after.reward[i]:.2f}",
        )
        for i in most_telling(after.reward - before.reward)
    ]
    headlines = [
        Headline(
            "Reward",
            f"{gain.mean:+.2f} ± {gain.se:.2f}",
            f"{gain.mean / gain.se:.1f} standard errors, {gain.n} fresh videos in pairs",
        ),
        Headline(
            "Prompt followed",
            f"{result.accuracy_before:.0%} → {result.accuracy_after:.0%}",
            "shape, colour and direction all as asked; never part of the reward",
        ),
        Headline(
            "Distance to real clips",
            f"{result.distance_before:.3f} → {result.distance_after:.3f}",
            "to the nearest clip of the world; never part of the reward",
        ),
        Headline("Time", f"{result.seconds:.0f} s", f"{result.iterations} iterations on this computer"),
    ]
    table = PageTable(
        "Before and after on the same prompts and seeds",
        ["", "before", "after", "difference [95 %]"],
        comparison(before, after),
        "Paired t-intervals. Held-out rows were never part of the reward.",
    )
    summary = (
        "A small video generator of moving shapes was post-trained with GRPO against rewards for visual quality, "
        "motion quality and text alignment. Below: what changed, on videos that training never saw."
    )
    footer = f"sage-grpo lab --seed {config.seed} --iterations {config.run.iterations} --samples {gain.n}"
    return Page("SAGE-GRPO laboratory", summary, headlines, charts, pairs, [table], footer)
