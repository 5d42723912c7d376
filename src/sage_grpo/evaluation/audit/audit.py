"""Find how each score can be gamed, by comparing the scores of clips with those of their degraded copies.

For scores that depend on the sound, the sound is degraded too. Changes are in spreads: standard deviations of the score
over the clips as they are. So +1 is what separates an ordinary clip from a rather good one. Where clips hardly differ,
the spread is a small share of the range over clips and copies.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
from scipy import stats

from sage_grpo.config import ConfigError
from sage_grpo.evaluation.audit.asking import Values, asked, senses_of
from sage_grpo.evaluation.audit.copies import Clip
from sage_grpo.evaluation.audit.degrade import DEGRADATIONS
from sage_grpo.evaluation.clips import MEGAPIXELS
from sage_grpo.evaluation.scorers import Scorers
from sage_grpo.progress import EmitProgress, no_count

SUM = "sum"
LEAST_SPREAD = 0.005  # of the range over clips and copies
NOTICED = 0.1  # spreads below which a change is none
CONFIDENCE = 0.95

Verdict = Literal["gamed", "blind", "caught", "unscored"]


@dataclass(frozen=True)
class Cell:
    """The mean change of one score from clips to their copies with one degradation, and the verdict on it.

    `gamed`: the copies score higher by a tenth of a spread or more, and surely so. The interval is above 0, or several
    clips gain and none loses (many scores are at the end of their scale for most clips). `caught`: the copies score
    lower, by the same rule. `blind`: neither higher nor lower. `unscored`: no clip has the score together with its
    copy. With one clip there is no interval, and the change alone decides.
    """

    verdict: Verdict
    clips: int
    change: float | None = None  # mean over clips, in spreads
    low: float | None = None  # of its 95 % interval, from two clips on
    high: float | None = None
    not_lower: int = 0  # clips whose copy scores at least as high


@dataclass(frozen=True)
class NaturalScores:
    """The distribution of one score over the clips as they are, not degraded."""

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
    sounds: list[str] = field(default_factory=list)  # kinds of copies that scores which hear have besides

    @property
    def scored(self) -> list[str]:
        """Return the names of the scores that at least one clip has."""
        return [key for key in self.keys if self.natural[key].clips]

    @property
    def heard(self) -> list[str]:
        """Return the names of the scores that at least one copy with degraded sound has."""
        having = {key: [name for name in self.sounds if name in self.cells[key]] for key in self.scored}
        return [key for key, names in having.items() if any(self.cells[key][name].clips for name in names)]

    def those(self, key: str, verdict: Verdict) -> list[str]:
        """Return the names of the degradations with this verdict for the score `key`, the largest change first."""
        changes = {name: abs(cell.change or 0.0) for name, cell in self.cells[key].items() if cell.verdict == verdict}
        return sorted(changes, key=lambda name: -changes[name])

    def to_json(self) -> dict[str, Any]:
        lists = {key: {"gamed_by": self.those(key, "gamed"), "blind_to": self.those(key, "blind")} for key in self.keys}
        content = asdict(self)
        if not self.sounds:
            del content["sounds"]
        return content | {"scores": lists, "unit": "standard deviations over the clips as they are"}


def cell_of(natural: Values, copies: Values, spread: float) -> Cell:
    """Return the mean change of a score from clips to their degraded copies, and the verdict.

    The verdict is "caught" if the score falls, "gamed" if it rises, and "blind" if neither is certain.

    Each copy is compared with its own clip.

    Args:
        natural: Scores of the clips, (clips,), nan where missing.
        copies: Scores of their copies, (clips,), nan where missing.
        spread: The unit of the change, from `spread_of`.
    """
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
    """Return the spread of a score, the unit of its changes, from its values (clips, 1 + copies).

    It is the standard deviation of the first column, the clips as they are, but at least 0.5 % of the range of all
    values. With fewer than two clips it is the whole range.
    """
    finite = values[np.isfinite(values)]
    whole = float(np.ptp(finite)) if len(finite) else 0.0
    plain = values[:, 0][np.isfinite(values[:, 0])]
    if len(plain) < 2:
        return whole
    return max(float(plain.std(ddof=1)), LEAST_SPREAD * whole)


def audit(
    clips: Sequence[Clip],
    scorers: Scorers,
    degradations: Sequence[str] = (),
    *,
    seed: int = 0,
    megapixels: float = MEGAPIXELS,
    emit: EmitProgress = no_count,
) -> AuditResult:
    """Score every clip and every degraded copy of it with every scorer, and return the changes with their verdicts.

    Scorers that use the sound are audited on degraded sound as well. If several scores have weights in the recipe,
    their weighted sum is audited as one more score.

    Args:
        clips: The clips to degrade and score.
        scorers: The scorers to audit.
        degradations: Names of the degradations of pictures; all if empty.
        seed: Seed of the random degradations.
        megapixels: Most pixels, in millions, of all clips together, for scorers that compare clips.

    Raises:
        ConfigError: No clip can be read, or no clip has any score.
    """
    names, keys = list(degradations or DEGRADATIONS), scorers.keys
    senses = senses_of(scorers, names)
    kinds = {key: sense.kinds for sense in senses for scorer in sense.scorers for key in scorer.keys}
    sheet = asked(clips, scorers, senses, seed, megapixels, emit)
    values, masked, unreadable = sheet.values, sheet.masked, sheet.unreadable
    if len(unreadable) == len(clips):
        name, reason = next(iter(unreadable.items()))
        raise ConfigError(f"none of the {len(clips)} videos can be read; {name}: {reason}")
    readable = [(i, clip) for i, clip in enumerate(clips) if clip.name not in unreadable]
    weighted = [
        pair for scorer in scorers.members if scorer.weights for pair in zip(scorer.keys, scorer.weights, strict=True)
    ]
    if len(weighted) > 1 and SUM not in keys:
        values[SUM] = _sum(values, weighted, scorers.advantages)
        kinds[SUM] = max((kinds[key] for key, _ in weighted), key=len)
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
                for column, name in enumerate(kinds[key], 1)
            }
            for key in keys
        },
        {key: dict(reasons.most_common()) for key, reasons in masked.items() if reasons},
        unreadable,
        seed,
        {key: {clip.name: _plain(values[key][i]) for i, clip in readable} for key in keys},
        [kind for kind in max(kinds.values(), key=len) if kind not in names],
    )


def _sum(values: dict[str, Values], weighted: Sequence[tuple[str, float]], advantages: bool) -> Values:
    """Return the weighted sum of scores, (clips, 1 + copies), as the recipe adds them.

    With `advantages`, each score is divided by its spread before the sum, and the sum by the sum of the absolute
    weights. A score that ignores the sound is the same on a copy with degraded sound as on the clip.
    """
    units = {key: (spread_of(values[key]) or 1.0) if advantages else 1.0 for key, _ in weighted}
    whole = sum(abs(weight) for _, weight in weighted) or 1.0
    widest = max(values[key].shape[1] for key, _ in weighted)
    parts = [(weight / units[key], values[key]) for key, weight in weighted]
    wide = [(weight, np.hstack([x, np.repeat(x[:, :1], widest - x.shape[1], axis=1)])) for weight, x in parts]
    summed: Values = np.sum([weight * x for weight, x in wide], axis=0)
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
