"""`sage-grpo lab`: post-train the model of shapes, measure what improved with its interval, and write a report."""

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.console import Console
from torch import Tensor

from sage_grpo.config import RecipeConfig
from sage_grpo.files import atomic_write
from sage_grpo.lab.before_after import BeforeAfter, counting, train_between
from sage_grpo.lab.comparison import (
    PAGE,
    Proportion,
    curve_reader,
    diversity_row,
    most_telling,
    paired_rows,
    policy_charts,
)
from sage_grpo.lab.shapes.evaluate import Evaluation, evaluate
from sage_grpo.lab.shapes.world import kept_out
from sage_grpo.report.animation import Shown, before_after
from sage_grpo.report.page import Headline, Page, PageTable, Picture, VideoPair, write_page
from sage_grpo.report.svg import Chart
from sage_grpo.statistics import effect, mcnemar, share_by_group
from sage_grpo.training.build import build_model, build_rewards
from sage_grpo.videos import contact_sheet, mp4_bytes

SCALES = (1.0, 2.0, 4.0)  # of guidance, at which the base is evaluated
FLAW = (
    "The base learned from captions that were mostly wrong for half of the pairs of colour and direction, and from "
    "clips that flicker or halt. Guidance does not fix that; rewards do. Same prompt and same seed, before and after."
)
PICTURE = "Prompts with their videos before and after training; a cross marks what the prompt did not ask for"


@dataclass(frozen=True)
class Rewards:
    """The reward of each video before and after training, (N,) each: its scores, weighted as in the recipe."""

    before: Tensor
    after: Tensor

    @property
    def gains(self) -> Tensor:
        return self.after - self.before


@dataclass(frozen=True)
class BaseMeasures:
    """Measures of the untrained base at one guidance scale. Shares have their 95 % interval."""

    followed: float
    interval: tuple[float, float]
    flawed: float
    distance: float
    diversity: float

    @classmethod
    def of(cls, found: Evaluation) -> "BaseMeasures":
        followed, low, high = share_by_group(found.accuracy.bool().tolist(), found.prompts)
        flawed = found.flawed.double().mean().item()
        return cls(followed, (low, high), flawed, found.distance.mean().item(), found.diversity)


@dataclass(frozen=True)
class LabResult:
    followed: Proportion  # shape, colour and direction as asked, all prompts
    never_seen: Proportion  # of prompts that post-training was not given
    flawed: Proportion  # videos that flicker or halt
    guidance: float  # in rollouts, and in all videos before and after
    base: Mapping[str, BaseMeasures]  # of the untrained base, by guidance scale
    gained: int  # videos that became right
    lost: int  # and wrong
    mcnemar_p: float
    reward_delta: float
    reward_se: float
    reward_interval: tuple[float, float]
    distance_before: float
    distance_after: float
    diversity_before: float
    diversity_after: float
    samples: int
    seed: int
    iterations: int
    seconds: float
    report: str

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def run_lab(out: Path, *, iterations: int | None, samples: int, seed: int, console: Console) -> LabResult:
    """Train with the recipe `lab`, evaluate before and after on the same fresh seeds, and write the report into `out`.

    Return what changed. `iterations` overrides the number of training iterations; None for that of the recipe.
    """
    overrides = [f"seed={seed}", f"run.out={out}", "run.sample_every=0"]
    overrides += [f"run.iterations={iterations}"] if iterations else []
    made = train_between("lab", overrides, evaluate, samples, doing="looking at", console=console)
    before, after = made.before, made.after
    picture = before_after(chosen(before, after))
    atomic_write(out / "before_after.webp", picture)
    weights = build_rewards(made.config)[1]
    rewards = Rewards(before.reward(weights), after.reward(weights))
    before_after_sheet(before, after, rewards, out / "before_after.png")
    started = time.perf_counter()
    base = base_measures(made.config, before, samples, console)
    made = replace(made, seconds=made.seconds + time.perf_counter() - started)
    result = compare(made, rewards, base, out / PAGE)
    write_page(make_page(result, before, after, rewards, made.config, picture), out / PAGE)
    return result


def base_measures(
    config: RecipeConfig, before: Evaluation, samples: int, console: Console
) -> Mapping[str, BaseMeasures]:
    """Return measures of the untrained base at each of `SCALES` of guidance, by scale.

    `before` is the base's evaluation at the recipe's own scale, which is not repeated.
    """
    model, found = build_model(config), dict[str, BaseMeasures]()
    own = model.guidance_scale
    for scale in SCALES:
        if scale == own:
            found[f"{scale:g}"] = BaseMeasures.of(before)
            continue
        console.print(f"    the untrained base with guidance {scale:g}", highlight=False)
        model.guidance_scale = scale
        with counting(console, samples) as emit:
            found[f"{scale:g}"] = BaseMeasures.of(evaluate(model, config, samples, emit=emit))
    return found


def compare(
    made: BeforeAfter[Evaluation], rewards: Rewards, base: Mapping[str, BaseMeasures], report: Path
) -> LabResult:
    before, after = made.before, made.after
    gain, new = effect(rewards.gains.tolist()), before.never_seen
    new_prompts = [prompt for prompt in before.prompts if kept_out(prompt)]
    changes = mcnemar(before.accuracy.bool().tolist(), after.accuracy.bool().tolist())
    return LabResult(
        Proportion.of(before.accuracy, after.accuracy, before.prompts),
        Proportion.of(before.accuracy[new], after.accuracy[new], new_prompts),
        Proportion.of(before.flawed, after.flawed, before.prompts),
        made.config.model.guidance_scale or 1.0,
        base,
        changes.gained,
        changes.lost,
        changes.p,
        gain.mean,
        gain.se,
        (gain.low, gain.high),
        before.distance.mean().item(),
        after.distance.mean().item(),
        before.diversity,
        after.diversity,
        gain.n,
        made.config.seed,
        made.iterations,
        made.seconds,
        str(report),
    )


def chosen(before: Evaluation, after: Evaluation) -> list[Shown]:
    """Return the videos for the animated picture, each before and after training.

    They are the first two that the base got wrong in colour alone, in direction alone and in shape alone. If there are
    none, it is the first video.
    """
    places: list[int] = []
    for column in (1, 2, 0):  # a wrong colour is seen first, then the direction, then the shape
        alone = ~before.correct[:, column] & (before.correct.sum(1) == 2)
        places += alone.nonzero()[:2, 0].tolist()
    return [
        Shown(
            before.prompts[i],
            before.videos[i],
            after.videos[i],
            bool(before.accuracy[i]),
            bool(after.accuracy[i]),
        )
        for i in places or [0]
    ]


def before_after_sheet(before: Evaluation, after: Evaluation, rewards: Rewards, path: Path) -> None:
    rows = []
    for i in most_telling(rewards.gains)[:5]:
        rows += [(f"{name}: {before.prompts[i]}", e.videos[i]) for name, e in (("before", before), ("after", after))]
    contact_sheet(path, rows, title="the same prompt and seed, before and after training")


def comparison(before: Evaluation, after: Evaluation, rewards: Rewards) -> list[list[str]]:
    """Return one table row per measure: its name, means before and after training, and their difference.

    The difference has its paired 95 % interval, except for diversity, which is one value for all videos.
    """
    new = before.never_seen
    columns = {
        "held out: all of the prompt right": (before.accuracy, after.accuracy),
        "held out: shape right": (before.correct[:, 0].double(), after.correct[:, 0].double()),
        "held out: colour right": (before.correct[:, 1].double(), after.correct[:, 1].double()),
        "held out: direction right": (before.correct[:, 2].double(), after.correct[:, 2].double()),
        "held out: all right, prompts never seen": (before.accuracy[new], after.accuracy[new]),
        "held out: all right, the other prompts": (before.accuracy[~new], after.accuracy[~new]),
        "held out: flickers or halts": (before.flawed.double(), after.flawed.double()),
        "held out: distance to the manifold": (before.distance, after.distance),
        "reward": (rewards.before, rewards.after),
        "VQ, visual quality": (before.scores[:, 0], after.scores[:, 0]),
        "MQ, motion quality": (before.scores[:, 1], after.scores[:, 1]),
        "TA, text alignment": (before.scores[:, 2], after.scores[:, 2]),
    }
    return [
        *paired_rows(columns),
        diversity_row(before.diversity, after.diversity, "held out: diversity of place, speed and size"),
        diversity_row(before.pixel_diversity, after.pixel_diversity, "held out: of pixels, mistakes included"),
    ]


def make_page(
    result: LabResult,
    before: Evaluation,
    after: Evaluation,
    rewards: Rewards,
    config: RecipeConfig,
    picture: bytes,
) -> Page:
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
            "Its parts",
            "iteration",
            "standard deviations of the base",
            [curve(f"reward/{name}", name) for name in ("VQ", "MQ", "TA")],
        ),
        *policy_charts(curve),
    ]
    pairs = [
        VideoPair(
            before.prompts[i],
            mp4_bytes(before.videos[i]),
            mp4_bytes(after.videos[i]),
            f"before: reward {rewards.before[i]:.2f}",
            f"after: reward {rewards.after[i]:.2f}",
        )
        for i in most_telling(rewards.gains)
    ]
    headlines = [
        Headline(
            "Prompts followed",
            str(result.followed),
            f"shape, colour and direction all as asked, on {result.samples} fresh videos; "
            f"95 %: {result.followed.intervals}",
        ),
        Headline(
            "Prompts never seen in training",
            str(result.never_seen),
            f"{int(before.never_seen.sum())} of these videos; 95 %: {result.never_seen.intervals}",
        ),
        Headline(
            "Clips that flicker or halt",
            str(result.flawed),
            f"by a detector that is not the reward; 95 %: {result.flawed.intervals}",
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
        comparison(before, after, rewards),
        f"Paired t-intervals. McNemar's exact test of the first row: {result.gained} videos became right and "
        f"{result.lost} wrong, p = {result.mcnemar_p:.1e}. Held-out rows were never part of the reward.",
    )
    bases = PageTable(
        "The untrained base, with more or less guidance",
        ["guidance", "prompts followed [95 %]", "flicker or halt", "distance", "diversity"],
        [
            [
                scale,
                f"{found.followed:.0%} [{100 * found.interval[0]:.0f}, {100 * found.interval[1]:.0f}]",
                f"{found.flawed:.0%}",
                f"{found.distance:.3f}",
                f"{found.diversity:.3f}",
            ]
            for scale, found in result.base.items()
        ],
        f"Rollouts, and the videos before and after, have guidance {result.guidance:g}.",
    )
    summary = (
        "A small video generator of moving shapes was post-trained with GRPO, and is judged as it is used: with "
        "guidance. Below: what changed, on videos that training never saw."
    )
    footer = f"sage-grpo lab --seed {config.seed} --iterations {config.run.iterations} --samples {result.samples}"
    opening = Picture(picture, PICTURE, FLAW)
    return Page("SAGE-GRPO laboratory", summary, headlines, charts, pairs, [table, bases], footer, picture=opening)
