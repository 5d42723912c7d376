"""Parts that the before-and-after reports of all worlds share: proportions, table rows, curves and charts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from sage_grpo.report.svg import Chart, Curve
from sage_grpo.runs.folder import RunFolder
from sage_grpo.statistics import effect, share_by_group
from sage_grpo.training.trackers import read_metrics

SHOWN = 8  # pairs of videos in a report
PAGE = "before_after.html"  # another than report.html, which `sage-grpo report` writes into the same folder


@dataclass(frozen=True)
class Proportion:
    """The share of videos (0 to 1) that have some property before and after training, with 95 % intervals."""

    before: float
    before_interval: tuple[float, float]
    after: float
    after_interval: tuple[float, float]

    @classmethod
    def of(cls, before: Tensor, after: Tensor, prompts: Sequence[str] | None = None) -> "Proportion":
        """Return the shares of True values of two masks (N,).

        Intervals are over `prompts`, one per video, because videos of one prompt are alike. With None, every video
        counts as independent.
        """
        groups = prompts or range(len(before))
        was, was_low, was_high = share_by_group(before.bool().tolist(), groups)
        now, now_low, now_high = share_by_group(after.bool().tolist(), groups)
        return cls(was, (was_low, was_high), now, (now_low, now_high))

    def __str__(self) -> str:
        return f"{self.before:.0%} → {self.after:.0%}"

    @property
    def intervals(self) -> str:
        (a, b), (c, d) = self.before_interval, self.after_interval
        return f"{100 * a:.0f}–{100 * b:.0f} → {100 * c:.0f}–{100 * d:.0f} %"


def most_telling(gains: Tensor) -> list[int]:
    """Return the indices of at most `SHOWN` videos to show before and after training, the largest gain first.

    `gains` (N,) are the videos' changes through training. The videos are evenly spaced in the order by gain, so that
    the failures are shown too.
    """
    order = gains.argsort(stable=True).tolist()
    places = torch.linspace(0, len(order) - 1, min(SHOWN, len(order))).round().long().tolist()
    return [order[i] for i in reversed(places)]


def paired_rows(columns: dict[str, tuple[Tensor, Tensor]]) -> list[list[str]]:
    """Return one table row per measure: its name, means before and after training, and their paired difference.

    `columns` has the values of each measure before and after, (N,) each, one value per video. The difference has its 95
    % interval.
    """
    rows = []
    for name, (old, new) in columns.items():
        change = effect((new - old).tolist())
        difference = f"{change.mean:+.3f} [{change.low:+.3f}, {change.high:+.3f}]"
        rows.append([name, f"{old.mean():.3f}", f"{new.mean():.3f}", difference])
    return rows


def diversity_row(before: float, after: float, name: str = "held out: diversity") -> list[str]:
    return [name, f"{before:.3f}", f"{after:.3f}", f"{after - before:+.3f}"]


def curve_reader(folder: str) -> Callable[[str, str], Curve]:
    """Return a function that reads a curve from a run's log: it takes a key of the log and a name to show.

    `folder` is the run folder. The curve has the values of this key over iterations.
    """
    log = read_metrics(RunFolder(Path(folder)).log)

    def curve(key: str, name: str) -> Curve:
        rows = [row for row in log if row.get(key) is not None]
        return Curve(name, [row["step"] for row in rows], [row[key] for row in rows])

    return curve


def policy_charts(curve: Callable[[str, str], Curve]) -> list[Chart]:
    """Return two charts over the iterations of a run: how far the policy has moved, and how its videos have drifted.

    The first has the KL to the anchor and to the initial policy. The second has the drift gauge's error and diversity
    relative to the start. `curve` is from `curve_reader`.
    """
    return [
        Chart(
            "Distance of the policy",
            "iteration",
            "KL per element",
            [curve("kl/anchor", "to the moving anchor"), curve("drift/kl_initial", "to the initial policy")],
        ),
        Chart(
            "Drift, relative to the start",
            "iteration",
            "ratio",
            [curve("drift/base_error", "base model's error"), curve("drift/diversity", "diversity in a group")],
        ),
    ]
