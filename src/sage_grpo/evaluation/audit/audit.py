"""How each score is gamed: clips against spoilt copies of themselves.

A change is told in spreads: standard deviations of the score over the clips as they are, so that +1 is what separates
an ordinary clip from a rather good one. Where clips do not differ, a small share of all that was seen stands in.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from scipy import stats
from torch import Tensor

from sage_grpo.config import ConfigError
from sage_grpo.core.protocols import Prompt, Videos
from sage_grpo.evaluation.audit.degrade import DEGRADATIONS, degrade
from sage_grpo.evaluation.clips import MEGAPIXELS, Unreadable
from sage_grpo.evaluation.panel import Answer, Judge, Panel, ask
from sage_grpo.progress import TellCount, no_count

SUM = "sum"
LEAST_SPREAD = 0.005  # of the range over clips and copies
NOTICED = 0.1  # spreads below which a change is none
CONFIDENCE = 0.95

Values = npt.NDArray[np.float64]
Verdict = Literal["gamed", "blind", "caught", "unscored"]


@dataclass(frozen=True)
class Clip:
    name: str
    prompt: Prompt
    load: Callable[[], Tensor]


@dataclass(frozen=True)
class Cell:
    """A score on one kind of copy.

    `gamed`: higher by a tenth of a spread or more, and surely so: the interval is above 0, or several clips gain and
    none loses (many scores are at their end for most clips). `caught`: the same downwards. `blind`: neither. With one
    clip: as measured.
    """

    verdict: Verdict
    clips: int
    change: float | None = None  # mean over clips, in spreads
    low: float | None = None  # of its 95 % interval, from two clips on
    high: float | None = None
    not_lower: int = 0  # clips whose copy scores at least as high


@dataclass(frozen=True)
class NaturalScores:
    """A score on the clips as they are."""

    clips: int  # that have it
    mean: float | None
    sd: float | None
    spread: float  # the unit of its changes


@dataclass(frozen=True)
class AuditResult:
    keys: list[str]
    degradations: list[str]
    clips: list[str]
    natural: dict[str, NaturalScores]
    cells: dict[str, dict[str, Cell]]
    masked: dict[str, dict[str, int]] = field(default_factory=dict)
    unreadable: dict[str, str] = field(default_factory=dict)
    seed: int = 0
    values: dict[str, dict[str, list[float | None]]] = field(
        default_factory=dict
    )  # by score and clip: as it is, copies

    @property
    def scored(self) -> list[str]:
        """Scores that some clip has."""
        return [key for key in self.keys if self.natural[key].clips]

    def those(self, key: str, verdict: Verdict) -> list[str]:
        """Degradations with this verdict, the largest change first."""
        changes = {name: abs(cell.change or 0.0) for name, cell in self.cells[key].items() if cell.verdict == verdict}
        return sorted(changes, key=lambda name: -changes[name])

    def to_json(self) -> dict[str, Any]:
        lists = {key: {"gamed_by": self.those(key, "gamed"), "blind_to": self.those(key, "blind")} for key in self.keys}
        return asdict(self) | {"scores": lists, "unit": "standard deviations over the clips as they are"}


def cell_of(natural: Values, copies: Values, spread: float) -> Cell:
    """Paired: each copy is compared with its own clip."""
    both = np.isfinite(natural) & np.isfinite(copies)
    changes = (copies - natural)[both] / (spread or 1.0)
    count = len(changes)
    if not count:
        return Cell("unscored", 0)
    mean, low, high = float(changes.mean()), None, None
    bottom = top = mean
    if count > 1:
        reach = float(stats.t.ppf((1 + CONFIDENCE) / 2, count - 1) * changes.std(ddof=1) / np.sqrt(count))
        low = bottom = mean - reach
        high = top = mean + reach
    gain, lose = int((changes >= NOTICED).sum()), int((changes <= -NOTICED).sum())
    verdict: Verdict = "blind"
    if mean >= NOTICED and (bottom > 0 or (gain > 1 and not lose)):
        verdict = "gamed"
    elif mean <= -NOTICED and (top < 0 or (lose > 1 and not gain)):
        verdict = "caught"
    return Cell(verdict, count, mean, low, high, int((changes >= 0).sum()))


def spread_of(values: Values) -> float:
    """Of (clips, 1 + copies), the clips as they are in the first column."""
    finite = values[np.isfinite(values)]
    whole = float(np.ptp(finite)) if len(finite) else 0.0
    plain = values[:, 0][np.isfinite(values[:, 0])]
    if len(plain) < 2:
        return whole
    return max(float(plain.std(ddof=1)), LEAST_SPREAD * whole)


def audit(
    clips: Sequence[Clip],
    panel: Panel,
    degradations: Sequence[str] = (),
    *,
    seed: int = 0,
    megapixels: float = MEGAPIXELS,
    tell: TellCount = no_count,
) -> AuditResult:
    """Every scorer on every clip and every spoilt copy of it; one clip in memory, unless a scorer compares clips."""
    names = list(degradations or DEGRADATIONS)
    keys = panel.keys
    values = {key: np.full((len(clips), 1 + len(names)), np.nan) for key in keys}
    masked: dict[str, Counter[str]] = {key: Counter() for key in keys}
    unreadable: dict[str, str] = {}
    alone, together = [j for j in panel.judges if not j.groupwise], [j for j in panel.judges if j.groupwise]

    def note(answer: Answer, i: int, column: int) -> None:
        for key, value in answer.scores.items():
            values[key][i, column] = value
        for key, reason in answer.masked.items():
            masked[key][reason] += 1

    total = len(clips) * (1 + len(names))
    for i, clip in enumerate(clips):
        try:
            frames = clip.load()
        except (Unreadable, OSError) as error:
            unreadable[clip.name] = str(error)
            continue
        for column, name in enumerate([None, *names]):
            tell(i * (1 + len(names)) + column, total, f"{clip.name} {name or 'as it is'}")
            copy = degrade(name, frames, seed + i) if name else frames
            for judge in alone:
                note(ask(judge, Videos(copy[None]), [clip.prompt])[0], i, column)
    tell(total, total, "")
    if len(unreadable) == len(clips):
        name, reason = next(iter(unreadable.items()))
        raise ConfigError(f"none of the {len(clips)} videos can be read; {name}: {reason}")
    readable = [(i, clip) for i, clip in enumerate(clips) if clip.name not in unreadable]
    if together:
        _compare(readable, together, names, seed, megapixels, note)
    weighted = [pair for judge in panel.judges if judge.weights for pair in zip(judge.keys, judge.weights, strict=True)]
    if len(weighted) > 1 and SUM not in keys:
        values[SUM] = _sum(values, weighted, panel.advantages)
        keys = [*keys, SUM]
    if all(np.isnan(table[:, 0]).all() for table in values.values()):
        reasons = Counter(reason for counts in masked.values() for reason in counts)
        raise ConfigError(f"no clip has any score, as it is; {next(iter(reasons), 'no scorer says why')}")
    return AuditResult(
        keys,
        names,
        [clip.name for _, clip in readable],
        {key: _natural(values[key]) for key in keys},
        {
            key: {
                name: cell_of(values[key][:, 0], values[key][:, column], spread_of(values[key]))
                for column, name in enumerate(names, 1)
            }
            for key in keys
        },
        {key: dict(reasons.most_common()) for key, reasons in masked.items() if reasons},
        unreadable,
        seed,
        {key: {clip.name: _plain(values[key][i]) for i, clip in readable} for key in keys},
    )


def _sum(values: dict[str, Values], weighted: Sequence[tuple[str, float]], advantages: bool) -> Values:
    """As the recipe adds them: scores as they are, or each in its own spread."""
    units = {key: (spread_of(values[key]) or 1.0) if advantages else 1.0 for key, _ in weighted}
    whole = sum(abs(weight) for _, weight in weighted) or 1.0
    summed: Values = np.sum([weight / units[key] * values[key] for key, weight in weighted], axis=0)
    return summed / whole if advantages else summed


def _plain(row: Values) -> list[float | None]:
    return [float(value) if np.isfinite(value) else None for value in row]


def _natural(values: Values) -> NaturalScores:
    plain = values[:, 0][np.isfinite(values[:, 0])]
    return NaturalScores(
        len(plain),
        float(plain.mean()) if len(plain) else None,
        float(plain.std(ddof=1)) if len(plain) > 1 else None,
        spread_of(values),
    )


def _compare(
    clips: Sequence[tuple[int, Clip]],
    judges: Sequence[Judge],
    names: Sequence[str],
    seed: int,
    megapixels: float,
    note: Callable[[Answer, int, int], None],
) -> None:
    """Scorers that compare get all clips as the group of one prompt, all as they are or all spoilt alike.

    Its scores hang together, so the group's mean counts as one clip.
    """
    loaded = [clip.load() for _, clip in clips]
    same = len({frames.shape for frames in loaded}) == 1 and len(loaded) > 1
    if not same or sum(frames.numel() for frames in loaded) / 3e6 > megapixels:
        reason = "it compares clips, which needs several of one size and within --megapixels together"
        for judge in judges:
            note(Answer({}, dict.fromkeys(judge.keys, reason)), clips[0][0], 0)
        return
    prompts = [clips[0][1].prompt] * len(loaded)
    for column, name in enumerate([None, *names]):
        group = [degrade(name, x, seed + i) if name else x for (i, _), x in zip(clips, loaded, strict=True)]
        for judge in judges:
            answers = ask(judge, Videos(torch.stack(group)), prompts)
            scores = {key: [a.scores[key] for a in answers if key in a.scores] for key in judge.keys}
            missing = {key: reason for a in answers for key, reason in a.masked.items() if not scores[key]}
            note(Answer({key: fmean(some) for key, some in scores.items() if some}, missing), clips[0][0], column)
