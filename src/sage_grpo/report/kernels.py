"""The noise of every kernel, step by step, in the three regimes of the paper's Figure 9."""

from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from sage_grpo.math.kernels import CLAMP, KERNELS, kernel_table

# Colours of Okabe and Ito (safe for colour blindness) with a marker each, so that print works too.
STYLE = {
    "dance": ("#E69F00", "o"),
    "flow": ("#D55E00", "s"),
    "sage": ("#0072B2", "D"),
    "cps": ("#009E73", "^"),
    "precise": ("#56B4E9", "v"),
    "dance_precise": ("#CC79A7", "P"),
    "ode": ("#666666", "x"),
}


def regimes(sigmas: Tensor) -> dict[str, Tensor]:
    """Three ways to keep away from the singular σ = 1, as schedules."""
    return {
        "(a) FlowGRPO's schedule: σ₀ = σ₁": sigmas.clamp(max=sigmas[1].item()),
        f"(b) clamped at σ ≤ 1 − {CLAMP:g}": sigmas.clamp(max=1 - CLAMP),
        "(c) each kernel's own rule": sigmas,
    }


def draw_regimes(sigmas: Tensor, eta: float, path: Path) -> None:
    """Write a picture with one panel a regime and one line a kernel."""
    figure = Figure(figsize=(13, 4.6), layout="constrained")
    axes = figure.subplots(1, 3, sharey=True)
    steps = range(len(sigmas) - 1)
    for ax, (title, schedule) in zip(axes, regimes(sigmas).items(), strict=True):
        for name in KERNELS:
            if name == "cps" and eta > 1:
                continue
            colour, marker = STYLE.get(name, ("#000000", "."))
            s = kernel_table(name, schedule, eta).s
            ax.plot(steps, s.tolist(), color=colour, marker=marker, markersize=4, linewidth=1.4, label=name)
        ax.set_title(title, fontsize=11)
        ax.set_xlabel("step (noise → data)")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.grid(alpha=0.25)
    axes[0].set_ylabel("noise added by the step, √Σ")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    schedule_text = f"{len(sigmas) - 1} steps from σ = 1 over σ₁ = {sigmas[1].item():.4f} to 0, η = {eta:g}"
    figure.suptitle(f"Exploration noise of each kernel: {schedule_text}", fontsize=12)
    figure.savefig(path, dpi=130)
