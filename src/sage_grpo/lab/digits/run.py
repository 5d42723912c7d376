"""`sage-grpo lab text`: post-train the model of four-digit numbers with real OCR as reward, and write a report."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path

from rich.console import Console
from torch import Tensor

from sage_grpo.config import RecipeConfig
from sage_grpo.core.protocols import Prompt
from sage_grpo.core.rollout import keyed_rng
from sage_grpo.files import atomic_write
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
from sage_grpo.lab.digits.evaluate import Evaluation, evaluate
from sage_grpo.report.animation import Shown, before_after
from sage_grpo.report.page import Headline, Page, PageTable, Picture, VideoPair, write_page
from sage_grpo.report.svg import Chart
from sage_grpo.statistics import effect, mcnemar
from sage_grpo.videos import contact_sheet, mp4_bytes

SUMMARY = (
    "A small video generator that writes numbers was post-trained with GRPO against a real reader, PP-OCRv4. "
    "Below: what changed, on numbers that neither stage of training saw."
)
FLAW = (
    "The base learned from captions with wrong digits, so it writes clear numbers that nobody asked for; "
    "a reward for what a reader reads cures it. Same prompt and same seed, before and after."
)
PICTURE = "Prompts with their videos before and after training; a cross marks what is not read as the prompt asks"
SHOWN = 5  # prompts in the moving picture
CONTROL = "A control: the same post-training with a lottery for a reward. What it gains, the reader did not teach."


@dataclass(frozen=True)
class TextResult:
    """The changes through training. Shares are from 0 to 1, and intervals are of 95 %."""

    exact: Proportion  # numbers that OCR reads as asked for
    exact_delta: float
    exact_delta_interval: tuple[float, float]  # paired t
    gained: int
    lost: int
    mcnemar_p: float
    characters_before: float
    characters_after: float
    characters_delta_interval: tuple[float, float]
    last_frame: Proportion
    second_reader: Proportion
    distance_before: float
    distance_after: float
    colour_before: float
    colour_after: float
    tint_before: float
    tint_after: float
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


def lottery(videos: Tensor, prompts: Sequence[Prompt]) -> list[float]:
    """Return a random score from 0 to 1 for each video (N, F, H, W, 3): a reward that knows nothing.

    The seed of each score is the bytes of the video, so that a resumed run draws the same scores.
    """
    return [float(keyed_rng(blake2b(video.numpy().tobytes()).hexdigest()).random()) for video in videos]


def run_text(
    out: Path,
    *,
    iterations: int | None,
    samples: int,
    seed: int,
    console: Console,
    base: Path | None = None,
    control: bool = False,
) -> TextResult:
    """Train with the recipe `text`, read fresh videos before and after, and write the report into `out`.

    Return what changed. `iterations` is None for that of the recipe, and `base` is None for the checkpoint that ships.
    With `control` the reward is a lottery, so what that run gains is not due to OCR as reward.
    """
    overrides = [f"seed={seed}", f"run.out={out}", "run.sample_every=0"]
    overrides += [f"run.iterations={iterations}"] if iterations else []
    overrides += [f"model.path={base}"] if base else []
    overrides += [f'rewards=[{{type: "{__name__}:lottery"}}]'] if control else []
    made = train_between("text", overrides, evaluate, samples, doing="reading", console=console)
    result = compare(made, out / PAGE)
    picture = before_after(chosen(made.before, made.after))
    atomic_write(out / "before_after.webp", picture)
    write_page(make_page(result, made.before, made.after, made.config, picture), out / PAGE)
    before_after_sheet(made.before, made.after, out / "before_after.png")
    return result


def compare(made: BeforeAfter[Evaluation], report: Path) -> TextResult:
    before, after = made.before, made.after
    old, new = before.exact(), after.exact()
    gain, letters = effect((new - old).tolist()), effect((after.characters() - before.characters()).tolist())
    changes = mcnemar(old.bool().tolist(), new.bool().tolist())

    def mean(values: Tensor) -> float:
        return values.double().mean().item()

    return TextResult(
        Proportion.of(old, new),
        gain.mean,
        (gain.low, gain.high),
        changes.gained,
        changes.lost,
        changes.p,
        mean(before.characters()),
        mean(after.characters()),
        (letters.low, letters.high),
        Proportion.of(before.exact(-1), after.exact(-1)),
        Proportion.of(before.second.all(1), after.second.all(1)),
        mean(before.distance),
        mean(after.distance),
        mean(before.colour),
        mean(after.colour),
        mean(before.tint),
        mean(after.tint),
        before.diversity,
        after.diversity,
        len(old),
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
    columns = {
        "number read exactly": (before.exact(), after.exact()),
        "characters right (the reward)": (before.characters(), after.characters()),
        "held out: exactly, in the last frame": (before.exact(-1), after.exact(-1)),
        "held out: exactly, by the second reader": (before.second.all(1).double(), after.second.all(1).double()),
        "held out: digits right, by the second reader": (before.second.double().mean(1), after.second.double().mean(1)),
        "held out: distance to the true rendering": (before.distance, after.distance),
        "held out: colour right": (before.colour, after.colour),
        "held out: tint off the colour asked for": (before.tint, after.tint),
    }
    return [
        *paired_rows(columns),
        diversity_row(before.diversity, after.diversity, "held out: diversity of place, drift and size"),
        diversity_row(before.pixel_diversity, after.pixel_diversity, "held out: of pixels, mistakes included"),
    ]


def chosen(before: Evaluation, after: Evaluation) -> list[Shown]:
    """Return the videos for the animated picture, each before and after training.

    They are the first `SHOWN` that OCR did not read as prompted before training. If there are none, it is the first
    video.
    """
    old, new = before.exact().bool(), after.exact().bool()
    places = (~old).nonzero()[:SHOWN, 0].tolist()
    return [
        Shown(
            before.prompts[i],
            before.videos[i],
            after.videos[i],
            bool(old[i]),
            bool(new[i]),
            f"read as {before.readings[i][0] or 'nothing'}",
            f"read as {after.readings[i][0] or 'nothing'}",
        )
        for i in places or [0]
    ]


def before_after_sheet(before: Evaluation, after: Evaluation, path: Path) -> None:
    rows = []
    for i in most_telling(after.characters() - before.characters()):
        for name, e in (("base", before), ("tuned", after)):
            rows.append((f"{e.wanted[i]} asked, {name}: OCR reads {e.readings[i][0] or 'nothing'}", e.videos[i]))
    contact_sheet(path, rows, title="the same prompt and seed before and after training, and what OCR read")


def make_page(result: TextResult, before: Evaluation, after: Evaluation, config: RecipeConfig, picture: bytes) -> Page:
    curve = curve_reader(config.run.out)
    charts = [
        Chart(
            "Reward of the rollouts",
            "iteration",
            "characters right",
            [curve("reward/mean", "reward")],
            note="Rollouts explore with noise and see a few numbers at a time; the table is on fresh videos.",
        ),
        Chart(
            "Spread of the reward",
            "iteration",
            "share or standard deviation",
            [curve("reward/std", "standard deviation"), curve("zero_std_ratio", "groups without a difference")],
        ),
        *policy_charts(curve),
    ]
    pairs = [
        VideoPair(
            before.prompts[i],
            mp4_bytes(before.videos[i]),
            mp4_bytes(after.videos[i]),
            f"before: read as {before.readings[i][0] or 'nothing'}",
            f"after: read as {after.readings[i][0] or 'nothing'}",
        )
        for i in most_telling(after.characters() - before.characters())
    ]
    headlines = [
        Headline(
            "Number read exactly",
            str(result.exact),
            f"by PP-OCRv4, on {result.samples} fresh videos of numbers that no training saw; "
            f"95 %: {result.exact.intervals}",
        ),
        Headline(
            "Second reader",
            str(result.second_reader),
            f"glyphs compared pixel by pixel, never part of the reward; 95 %: {result.second_reader.intervals}",
        ),
        Headline(
            "Distance to the true rendering",
            f"{result.distance_before:.3f} → {result.distance_after:.3f}",
            "never part of the reward",
        ),
        Headline(
            "Time",
            f"{result.seconds:.0f} s",
            f"{result.cpu_seconds / 60:.1f} CPU minutes, {result.iterations} iterations in all",
        ),
    ]
    note = (
        f"Paired t-intervals. McNemar's exact test of the first row: {result.gained} numbers became right and "
        f"{result.lost} wrong, p = {result.mcnemar_p:.1e}. Held-out rows were never part of the reward."
    )
    header = ["", "before", "after", "difference [95 %]"]
    table = PageTable("Before and after on the same prompts and seeds", header, comparison(before, after), note)
    control = config.rewards[0].type.endswith("lottery")
    summary = CONTROL if control else SUMMARY
    footer = f"sage-grpo lab text --seed {config.seed} --iterations {config.run.iterations} --samples {result.samples}"
    footer += " --control" if control else ""
    opening = Picture(picture, PICTURE, "" if control else FLAW)
    return Page("SAGE-GRPO text rendering", summary, headlines, charts, pairs, [table], footer, picture=opening)
