"""Draw the pictures of docs/concepts.md from the functions themselves: `make figures`. About three CPU minutes."""

import sys
import tempfile
from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console

from research.grid import experiments
from sage_grpo.config import GaugeConfig, load_recipe
from sage_grpo.drawing import BLACK, BLUE, GREEN, GREY, VERMILION, drawn, legend_below
from sage_grpo.math.advantage import group_advantages
from sage_grpo.math.controller import KLRule, initial_weight, next_weight
from sage_grpo.math.equalizer import equalizer, gradient_scale
from sage_grpo.math.kernels import kernel_table
from sage_grpo.math.schedule import sigma_schedule
from sage_grpo.report.kernels import STYLE
from sage_grpo.training.trackers import read_metrics
from sage_grpo.training.trainer import Trainer

HERE = Path(__file__).parent


def panels(figure: Figure, count: int) -> list[Axes]:
    return list(figure.subplots(1, count, squeeze=False)[0])


def paths(figure: Figure) -> None:
    """Rollouts of one initial noise for data N(1, 0.05²), where the velocity is known exactly."""
    axes = panels(figure, 4)
    mean, width, sigmas = 1.0, 0.05, sigma_schedule(20, 3.0)
    for ax, name in zip(axes, ("ode", "flow", "sage", "precise"), strict=True):
        table, random = kernel_table(name, sigmas, 0.7), torch.Generator().manual_seed(0)
        x = torch.full((12,), -0.6, dtype=torch.float64)
        walked = [x]
        for sigma, a, b, s in zip(table.sigma, table.a, table.b, table.s, strict=True):
            gain = (1 - sigma) * width**2 / ((1 - sigma) ** 2 * width**2 + sigma**2)
            clean = mean + gain * (x - (1 - sigma) * mean)
            noise = torch.randn(12, generator=random, dtype=torch.float64)
            x = a * x + b * (x - clean) / sigma + s * noise
            walked.append(x)
        ax.plot(sigmas.tolist(), torch.stack(walked).tolist(), color=STYLE[name][0], linewidth=0.9)
        ax.axhspan(mean - 2 * width, mean + 2 * width, color=GREEN, alpha=0.25)
        ax.set(title=name, xlabel="noise level σ", xlim=(1, 0), ylim=(-1.6, 2.2))
    axes[0].set_ylabel("x; the data in green")
    figure.suptitle("Twelve rollouts from one initial noise, η = 0.7, with the kernel's own noise in the last step")


def scalars(figure: Figure) -> None:
    axes = panels(figure, 3)
    for name in ("ode", "flow", "sage", "precise"):
        table = kernel_table(name, sigma_schedule(20, 5.0), 0.7)
        for ax, column in zip(axes, (table.a, table.b, table.s), strict=True):
            ax.plot(column.tolist(), color=STYLE[name][0], marker=STYLE[name][1], label=name)
    titles = ("a: what is kept of x", "b: weight of the velocity", "s: fresh noise")
    for ax, title in zip(axes, titles, strict=True):
        ax.set(title=title, xlabel="step (noise → data)")
    axes[0].legend()


def equalized(figure: Figure) -> None:
    axes = panels(figure, 2)
    for name in ("flow", "sage", "precise"):
        table = kernel_table(name, sigma_schedule(20, 5.0), 0.7)
        table = table.ode_outside(table.sigma_next > 0)
        on, scale, weight = table.stochastic, gradient_scale(table), equalizer(table)
        colour, marker = STYLE[name]
        axes[0].semilogy(scale[on].tolist(), color=colour, marker=marker, label=name)
        axes[1].semilogy((scale * weight)[on].tolist(), color=colour, marker=marker)
    axes[0].set(title="gradient scale N = |b|/s", xlabel="step (noise → data)")
    axes[1].set(title="with the equalizer: S · N", xlabel="step (noise → data)", ylim=axes[0].get_ylim())
    axes[0].legend()


def region(figure: Figure) -> None:
    """A sketch: where the two references stand while a policy walks."""
    (ax,) = panels(figure, 1)
    random = torch.Generator().manual_seed(4)
    steps = torch.tensor([0.33, 0.06]) + 0.13 * torch.randn(26, 2, generator=random)
    walk = torch.cat([torch.zeros(1, 2), steps.cumsum(0)])
    ax.plot(*walk.T.tolist(), color=GREY, marker="o", markersize=3, linewidth=1, label="policy after each update")
    for i in (0, 10, 20):
        x, y = walk[i].tolist()
        ax.plot(x, y, color=BLUE, marker="D", markersize=9, label="moving anchor, every 10 updates" if not i else None)
    for centre, radius, colour in ((walk[20], 1.7, BLUE), (walk[25], 0.75, VERMILION)):
        turn = torch.linspace(0, 2 * torch.pi, 100)
        ax.plot(
            (centre[0] + radius * turn.cos()).tolist(),
            (centre[1] + 0.6 * radius * turn.sin()).tolist(),
            color=colour,
            linestyle="--",
        )
    ax.plot(
        *walk[25].tolist(), color=VERMILION, marker="s", markersize=8, label="previous policy, which made the rollout"
    )
    ax.set(xticks=[], yticks=[], title="two references: where it may be, and how fast it may go (a sketch)")
    ax.legend(loc="upper left")


def weight(figure: Figure) -> None:
    """λ and the KL that answers it: a KL of c/λ, with noise, as when both pulls are in balance."""
    axes = panels(figure, 2)
    for sign, colour in (("none", GREY), ("proportional", BLUE), ("lagrangian", GREEN), ("paper", VERMILION)):
        rule = KLRule(1e-3, 1.0, warmup=50, feedback=sign, target=3e-6 if sign != "none" else 0.0)
        state, random, found = initial_weight(rule), torch.Generator().manual_seed(1), []
        for _ in range(160):
            noise = 1 + 0.2 * torch.randn(1, generator=random).item()
            kl = 1e-6 * noise / max(state.value, 0.02)
            found.append((state.value, kl))
            state = next_weight(state, kl, rule)
        label = "warm-up only" if sign == "none" else f"then `{sign}`"
        line = {"color": colour, "linestyle": "--" if sign == "none" else "-", "zorder": 3 if sign == "none" else 2}
        axes[0].semilogy([v for v, _ in found], label=label, **line)
        axes[1].semilogy([k for _, k in found], **line)
    axes[1].axhline(3e-6, color=BLACK, linestyle=":", label="target")
    axes[0].set(title="λ", xlabel="update")
    axes[1].set(title="KL that it leads to (a model: KL ∝ 1/λ)", xlabel="update")
    for ax in axes:
        ax.legend()


def groups(figure: Figure) -> None:
    rewards = torch.tensor([[0.2, 0.5, 0.9, 0.4], [2.0, 2.1, 2.2, 1.7], [-1.0, -0.2, 0.0, -0.5]], dtype=torch.float64)
    valid = torch.ones(3, 4, dtype=torch.bool)
    valid[2, 2] = False
    advantage, used = group_advantages(rewards, valid)
    axes = panels(figure, 2)
    for group, colour in enumerate((BLUE, VERMILION, GREEN)):
        place = [5 * group + i for i in range(4)]
        axes[0].bar(place, rewards[group].where(valid[group], torch.nan).tolist(), color=colour)
        axes[1].bar(place, advantage[group].where(used[group], torch.nan).tolist(), color=colour)
    for ax, title in zip(axes, ("rewards: three prompts, four rollouts each", "advantages"), strict=True):
        ax.set(title=title, xticks=[1.5, 6.5, 11.5], xticklabels=["prompt 1", "prompt 2", "prompt 3"])
        ax.text(12, 0.05, "failed", rotation=90, ha="center", va="bottom", fontsize=8)
        ax.axhline(0, color=BLACK, linewidth=0.8)


def gauge(figure: Figure) -> None:
    """Two runs: `lab-paper`, and one that is paid for clean colours alone and held by nothing."""
    hacking = experiments({})["hacking"].overrides
    axes = panels(figure, 3)
    for label, colour, settings in (("lab-paper", BLUE, ()), ("paid for looks alone, no KL", VERMILION, hacking)):
        with tempfile.TemporaryDirectory() as folder:
            common = [f"run.out={folder}", "run.sample_every=0", "gauge.every=1"]
            Trainer(config=load_recipe("lab-paper", [*common, *settings]), console=Console(quiet=True)).train()
            rows = read_metrics(Path(folder) / "metrics.jsonl")
        for ax, name in zip(axes, ("reward/VQ", "reward/TA", "drift/base_error"), strict=True):
            ax.plot([row["step"] for row in rows], [row[name] for row in rows], color=colour, label=label)
            ax.set(title=name, xlabel="iteration")
    axes[2].axhline(GaugeConfig().base_error, color=BLACK, linestyle=":", label="limit")
    legend_below(figure)


PICTURES = {
    "paths": paths,
    "scalars": scalars,
    "equalizer": equalized,
    "region": region,
    "weight": weight,
    "groups": groups,
    "gauge": gauge,
}

if __name__ == "__main__":
    for name in sys.argv[1:] or PICTURES:
        with drawn(HERE / f"concept_{name}.png", 3.6 if name == "region" else 3.0) as figure:
            PICTURES[name](figure)
