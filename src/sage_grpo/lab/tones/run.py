"""`sage-grpo lab sound`: post-train the model of shapes with sound, and report whether sound and picture fit."""

from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Console

from sage_grpo.config import RecipeConfig
from sage_grpo.lab.before_after import BeforeAfter, train_between
from sage_grpo.lab.comparison import (
    PAGE,
    Proportion,
    curve_reader,
    diversity_row,
    most_telling,
    paired_rows,
    policy_charts,
)
from sage_grpo.lab.tones.evaluate import NEAR, Evaluation, evaluate
from sage_grpo.report.page import Headline, Page, PageTable, VideoPair, write_page
from sage_grpo.report.svg import Chart, Curve
from sage_grpo.statistics import effect
from sage_grpo.videos import mp4_bytes, sound_of

SUMMARY = (
    "A small generator makes moving shapes with a tone: the higher the shape is, the higher it should sound. It "
    "learned from clips of which many had the sound of another clip. GRPO with a reward that looks and listens cures "
    "that. Videos below start muted: turn their sound on."
)


@dataclass(frozen=True)
class SoundResult:
    """The changes through training.

    A gap is the distance in octaves between the pitch of the sound and the pitch that the picture asks for. Gaps were
    never part of the reward.
    """

    fits: Proportion  # heard within NEAR octaves of what is seen
    never_seen: Proportion  # the same of prompts that post-training was not given
    gap_before: float
    gap_after: float
    gap_delta: float
    gap_standard_errors: float  # by how many the gap fell
    gap_never_seen_standard_errors: float
    distance_before: float
    distance_after: float
    distance_delta_interval: tuple[float, float]  # paired t, 95 %
    followed: Proportion
    diversity_before: float
    diversity_after: float
    samples: int
    seed: int
    iterations: int
    seconds: float
    cpu_seconds: float
    report: str

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def run_sound(
    out: Path, *, iterations: int | None, samples: int, seed: int, console: Console, base: Path | None = None
) -> SoundResult:
    """Train with the recipe `sound`, listen to fresh videos before and after, and write the report into `out`.

    Return what changed. `iterations` is None for that of the recipe, and `base` is None for the checkpoint that ships.
    """
    overrides = [f"seed={seed}", f"run.out={out}", "run.sample_every=0"]
    overrides += [f"run.iterations={iterations}"] if iterations else []
    overrides += [f"model.path={base}"] if base else []
    made = train_between("sound", overrides, evaluate, samples, doing="listening to", console=console)
    result = compare(made, out / PAGE)
    write_page(make_page(result, made.before, made.after, made.config), out / PAGE)
    return result


def compare(made: BeforeAfter[Evaluation], report: Path) -> SoundResult:
    before, after = made.before, made.after
    new = before.pictures.never_seen
    fell, unseen = (effect((before.gap - after.gap)[rows].tolist()) for rows in (torch.ones_like(new), new))
    further = effect((after.pictures.distance - before.pictures.distance).tolist())
    return SoundResult(
        Proportion.of(before.fits, after.fits),
        Proportion.of(before.fits[new], after.fits[new]),
        before.gap.mean().item(),
        after.gap.mean().item(),
        -fell.mean,
        fell.standard_errors,
        unseen.standard_errors,
        before.pictures.distance.mean().item(),
        after.pictures.distance.mean().item(),
        (further.low, further.high),
        Proportion.of(before.pictures.accuracy, after.pictures.accuracy),
        before.pictures.diversity,
        after.pictures.diversity,
        len(before.gap),
        made.config.seed,
        made.iterations,
        made.seconds,
        made.cpu_seconds,
        str(report),
    )


def comparison(before: Evaluation, after: Evaluation) -> list[list[str]]:
    """Return one table row per measure: its name, means before and after training, and their difference.

    The difference has its paired 95 % interval, except for diversity, which is one value for all videos.
    """
    old, new, unseen = before.pictures, after.pictures, before.pictures.never_seen
    columns = {
        "held out: octaves between sound and picture": (before.gap, after.gap),
        "held out: the same, prompts never seen": (before.gap[unseen], after.gap[unseen]),
        f"held out: within {NEAR} octaves": (before.fits.double(), after.fits.double()),
        "pitch (the reward)": (before.scores, after.scores),
        "held out: distance to the manifold": (old.distance, new.distance),
        "held out: all of the prompt right": (old.accuracy, new.accuracy),
    }
    diversity = diversity_row(old.diversity, new.diversity, "held out: diversity of place, speed and size")
    return [*paired_rows(columns), diversity]


def in_order(name: str, evaluation: Evaluation) -> Curve:
    """Return a curve of the gaps of all videos, in octaves and from small to large, over per cent of the videos.

    `name` is the label of the curve.
    """
    ordered = evaluation.gap.sort().values
    return Curve(name, torch.linspace(0, 100, len(ordered)).tolist(), ordered.tolist())


def make_page(result: SoundResult, before: Evaluation, after: Evaluation, config: RecipeConfig) -> Page:
    curve = curve_reader(config.run.out)
    charts = [
        Chart(
            "How far the sound is from the picture",
            "per cent of the videos",
            "octaves",
            [in_order("before", before), in_order("after", after)],
            note="Fresh videos in order of their gap: the curve shows how many are off, and by how much.",
        ),
        Chart("Reward of the rollouts", "iteration", "pitch", [curve("reward/mean", "reward")]),
        *policy_charts(curve),
    ]
    headlines = [
        Headline(
            "Sound fits the picture",
            str(result.fits),
            f"within {NEAR} octaves, on {result.samples} fresh videos; 95 %: {result.fits.intervals}",
        ),
        Headline(
            "Prompts never seen in training",
            str(result.never_seen),
            f"{int(before.pictures.never_seen.sum())} of these videos; 95 %: {result.never_seen.intervals}",
        ),
        Headline(
            "Distance to real clips",
            f"{result.distance_before:.3f} → {result.distance_after:.3f}",
            "of the picture, to the nearest clip of the world; never part of the reward",
        ),
        Headline(
            "Time",
            f"{result.seconds:.0f} s",
            f"{result.cpu_seconds / 60:.1f} CPU minutes, {result.iterations} iterations in all",
        ),
    ]
    pairs = [
        VideoPair(
            before.pictures.prompts[i],
            heard(before, i),
            heard(after, i),
            f"before: {before.gap[i]:.2f} octaves off",
            f"after: {after.gap[i]:.2f} octaves off",
        )
        for i in most_telling(before.gap - after.gap)
    ]
    note = (
        f"Paired t-intervals. The gap fell by {result.gap_standard_errors:.1f} standard errors. "
        "Held-out rows were never part of the reward."
    )
    header = ["", "before", "after", "difference [95 %]"]
    table = PageTable("Before and after on the same prompts and seeds", header, comparison(before, after), note)
    footer = f"sage-grpo lab sound --seed {config.seed} --iterations {config.run.iterations} --samples {result.samples}"
    return Page("SAGE-GRPO with sound", SUMMARY, headlines, charts, pairs, [table], footer)


def heard(evaluation: Evaluation, i: int) -> bytes:
    """Return video `i` of an evaluation with its sound, as the bytes of an MP4 file."""
    videos = evaluation.videos
    return mp4_bytes(videos.frames[i], videos.frame_rate, sound=sound_of(videos.sound, videos.sample_rate, i))
