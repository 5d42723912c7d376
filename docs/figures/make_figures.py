"""Redraw the figures of docs/equations.md: `make figures`."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "tests"))

from precision import drift_at_large_size  # noqa: E402
from sage_grpo.drawing import BLUE, GREY, VERMILION, drawn  # noqa: E402
from sage_grpo.math.schedule import sigma_schedule  # noqa: E402
from sage_grpo.report.kernels import draw_regimes  # noqa: E402

USUAL, OURS = VERMILION, BLUE


def ratio_drift(path: Path) -> None:
    drift = drift_at_large_size(elements=1_000_000)
    with drawn(path, 4.0, "The importance ratio in bf16 with 1,000,000 latent elements") as figure:
        left, right = figure.subplots(1, 2)
        panels = (
            (left, "before any update: the truth is 0", drift.usual_unchanged, drift.ours_unchanged),
            (right, "after the policy moved by 1 %: error against float64", drift.usual_error, drift.ours_error),
        )
        for ax, title, usual, ours in panels:
            ax.semilogy(drift.sigma, usual, color=USUAL, marker="s", label="difference of log-densities")
            if any(ours):
                ax.semilogy(drift.sigma, ours, color=OURS, marker="D", label="velocity form")
            else:
                ax.plot([], [], color=OURS, marker="D", label="velocity form: exactly 0 at every step")
            ax.axhline(1e-4, color=GREY, linestyle="--", linewidth=1, label="a clip range of 1e-4")
            ax.set(title=title, xlabel="noise level σ of the step")
            ax.legend(loc="center right" if any(ours) else "lower left")
        left.set_ylabel("|log-ratio|")
        right.set_ylabel("|log-ratio − truth|")


if __name__ == "__main__":
    ratio_drift(HERE / "ratio_drift.png")
    draw_regimes(sigma_schedule(20, 5.0), 0.7, HERE / "kernels.png")
