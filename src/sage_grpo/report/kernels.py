"""Draw the noise that each kernel adds per step, in the three regimes of the paper's Figure 9."""

from pathlib import Path

from matplotlib.ticker import MaxNLocator
from torch import Tensor

from sage_grpo.drawing import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILION, drawn, legend_below
from sage_grpo.math.kernels import CLAMP, KERNELS, kernel_table

STYLE = {
    "dance": (ORANGE, "o"),
    "flow": (VERMILION, "s"),
    "sage": (BLUE, "D"),
    "cps": (GREEN, "^"),
    "precise": (SKY, "v"),
    "dance_precise": (PURPLE, "P"),
    "ode": (GREY, "x"),
}


def regimes(sigmas: Tensor) -> dict[str, Tensor]:
    """Return the noise schedule in three forms, by title.

    Each form is a way to keep away from σ = 1, where kernels are singular.
    """
    return {
        "(a) FlowGRPO's schedule: σ₀ = σ₁": sigmas.clamp(max=sigmas[1].item()),
        f"(b) clamped at σ ≤ 1 − {CLAMP:g}": sigmas.clamp(max=1 - CLAMP),
        "(c) each kernel's own rule": sigmas,
    }


def draw_regimes(sigmas: Tensor, eta: float, path: Path) -> None:
    """Write a picture with one panel per regime and one line per kernel: the noise that it adds at each step.

    Args:
        sigmas: The noise schedule from 1 to 0, (steps + 1,).
        eta: The noise level.
        path: The picture to write.
    """
    steps = range(len(sigmas) - 1)
    said = f"{len(steps)} steps from σ = 1 over σ₁ = {sigmas[1].item():.4f} to 0, η = {eta:g}"
    with drawn(path, 4.0, f"Exploration noise of each kernel: {said}") as figure:
        axes = figure.subplots(1, 3, sharey=True)
        for ax, (title, schedule) in zip(axes, regimes(sigmas).items(), strict=True):
            for name in KERNELS:
                if (name == "cps" and eta > 1) or not KERNELS[name].scaled:  # the same noise as another's
                    continue
                colour, marker = STYLE.get(name, (BLACK, "."))
                s = kernel_table(name, schedule, eta).s
                ax.plot(steps, s.tolist(), color=colour, marker=marker, markersize=4, label=name)
            ax.set(title=title, xlabel="step (noise → data)")
            ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes[0].set_ylabel("noise added by the step, √Σ")
        legend_below(figure)
