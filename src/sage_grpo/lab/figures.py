"""The laboratory's versions of the paper's Figures 3, 4, 7, 8 and 9, with bands over seeds."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sage_grpo.lab.claims import Measure, Results
from sage_grpo.lab.grid import GENERATIONS, KERNELS, PROMPTS, RATES, TARGET, TRAINED, size_name
from sage_grpo.report.kernels import STYLE

KL = {"kl-none": "none", "kl-fixed": "fixed", "kl-step": "step", "kl-moving": "moving", "kernel-sage": "dual"}
COLOURS = ("#666666", "#E69F00", "#009E73", "#56B4E9", "#0072B2")


def _band(ax: Axes, runs: dict[int, dict[str, Any]], key: str, label: str, colour: str, smooth: int = 5) -> None:
    """Mean over seeds of a running mean, with the standard error as band."""
    curves = [run["curves"][key] for run in runs.values()]
    length = min(len(c) for c in curves)
    if not length:
        return
    steps = [point[0] for point in curves[0][:length]]
    values = np.array([[point[1] for point in c[:length]] for c in curves])
    width = min(smooth, length)
    values = np.apply_along_axis(lambda row: np.convolve(row, np.ones(width) / width, "valid"), 1, values)
    steps = steps[width - 1 :]
    mean, error = values.mean(0), values.std(0, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else values[0] * 0
    ax.plot(steps, mean, color=colour, label=label, linewidth=1.6)
    ax.fill_between(steps, mean - error, mean + error, color=colour, alpha=0.18, linewidth=0)


def _finish(figure: Figure, axes: Sequence[Axes], path: Path, columns: int) -> None:
    for ax in axes:
        ax.grid(alpha=0.25)
        ax.spines[["top", "right"]].set_visible(False)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)
    figure.savefig(path, dpi=120)


def figure_3(results: Results, path: Path) -> None:
    figure = Figure(figsize=(13, 3.6), layout="constrained")
    axes = figure.subplots(1, len(TRAINED), sharey=True)
    for ax, kernel in zip(axes, TRAINED, strict=True):
        _band(ax, results.runs[f"kernel-{kernel}"], "reward/mean", "equalizer on", "#0072B2", 8)
        _band(ax, results.runs[f"kernel-{kernel}-unequal"], "reward/mean", "equalizer off", "#D55E00", 8)
        ax.set_title(kernel, fontsize=11)
        ax.set_xlabel("iteration")
    axes[0].set_ylabel("reward of rollouts")
    figure.suptitle("Effect of the gradient equalizer, by kernel (mean ± standard error over seeds)", fontsize=12)
    _finish(figure, axes, path, 2)


def figure_4(direct: dict[str, Any], path: Path) -> None:
    figure = Figure(figsize=(6.5, 4.2), layout="constrained")
    ax = figure.subplots()
    raw, equal = direct["gradient"]["raw"], direct["gradient"]["equalized"]
    scale = np.array(raw["scale"])
    ax.semilogy(raw["sigma"], raw["norm"], "o-", color="#D55E00", label="measured, raw")
    ax.semilogy(
        raw["sigma"],
        scale * np.exp(np.mean(np.log(raw["norm"]) - np.log(scale))),
        "--",
        color="#666666",
        label="N = |b|/√Σ, scaled",
    )
    ax.semilogy(equal["sigma"], equal["norm"], "D-", color="#0072B2", label="measured, equalized")
    ax.set_xlabel("noise level σ")
    ax.set_ylabel("norm of the parameter gradient")
    ax.set_title("Gradient norm by timestep, kernel sage", fontsize=12)
    _finish(figure, [ax], path, 3)


def figure_7(results: Results, path: Path) -> None:
    figure = Figure(figsize=(13, 4), layout="constrained")
    axes = figure.subplots(1, 3)
    names = {
        "kernel-sage": "constant",
        "lambda-two-stage": "two-stage",
        "lambda-lagrangian": "feedback, Lagrangian",
        "lambda-paper": "feedback, as printed",
    }
    for (name, label), colour in zip(names.items(), ("#666666", "#E69F00", "#0072B2", "#D55E00"), strict=True):
        for ax, key in zip(axes, ("reward/mean", "kl_weight", "approx_kl"), strict=True):
            _band(ax, results.runs[name], key, label, colour, 8 if key == "reward/mean" else 1)
    for ax, title in zip(axes, ("reward of rollouts", "weight λ", "KL of an update"), strict=True):
        ax.set_title(title, fontsize=11)
        ax.set_xlabel("iteration")
    axes[1].set_yscale("log")
    axes[2].set_yscale("log")
    axes[2].axhline(TARGET, color="#000000", linestyle=":", linewidth=1)
    axes[2].text(0.02, 1.1 * TARGET, "target of the feedback", fontsize=8, transform=axes[2].get_yaxis_transform())
    figure.suptitle("Schedules and feedback for the KL weight (mean ± standard error over seeds)", fontsize=12)
    _finish(figure, axes, path, 4)


def figure_8(results: Results, path: Path) -> None:
    figure = Figure(figsize=(13, 4), layout="constrained")
    axes = figure.subplots(1, 4)
    keys = {
        "reward/mean": "reward of rollouts",
        "reward/std": "std of rewards (exploration)",
        "drift/base_error": "base model's error, relative",
        "drift/diversity": "diversity in a group, relative",
    }
    for (name, label), colour in zip(KL.items(), COLOURS, strict=True):
        for ax, key in zip(axes, keys, strict=True):
            _band(ax, results.runs[name], key, label, colour, 8 if key.startswith("reward") else 1)
    for ax, title in zip(axes, keys.values(), strict=True):
        ax.set_title(title, fontsize=11)
        ax.set_xlabel("iteration")
    figure.suptitle("KL strategies (mean ± standard error over seeds)", fontsize=12)
    _finish(figure, axes, path, 5)


def figure_9(direct: dict[str, Any], path: Path) -> None:
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    for kernel, noise in direct["noise"].items():
        colour, marker = STYLE[kernel]
        left.plot(noise["sigma"], noise["theory"], "-", color=colour, linewidth=1.4)
        left.plot(noise["sigma"], noise["measured"], marker, color=colour, markersize=6, label=kernel)
    left.set_title("noise after a step / σ' (line: closed form, marks: model)", fontsize=11)
    left.set_xlabel("noise level σ before the step")
    places = np.arange(len(KERNELS))
    for offset, ending, hatch in ((-0.2, "noisy", "//"), (0.2, "clean", "")):
        values = [np.mean(direct["quality"][f"{k}-{ending}"]) for k in KERNELS]
        right.bar(places + offset, values, 0.38, color=[STYLE[k][0] for k in KERNELS], hatch=hatch, edgecolor="white")
    right.set_xticks(places, KERNELS)
    right.set_title("distance of base rollouts to the manifold (hatched: noisy last step)", fontsize=11)
    _finish(figure, [left, right], path, 5)


def _points(ax: Axes, results: Results, measure: Measure, marks: dict[str, tuple[str, str, str]]) -> None:
    """One point an experiment with its standard errors, of a measure against drift; marks: label, colour, shape."""
    for name, (label, colour, marker) in marks.items():
        gain, drift = (list(found.values()) for found in (measure(name), results.drift(name)))
        root = np.sqrt(len(gain))
        errors = {"xerr": np.std(drift, ddof=1) / root, "yerr": np.std(gain, ddof=1) / root} if root > 1 else {}
        ax.errorbar(np.mean(drift), np.mean(gain), **errors, fmt=marker, color=colour, label=label, linewidth=1)
    ax.axvline(0, color="#000000", linewidth=0.8)
    ax.grid(alpha=0.25)
    ax.spines[["top", "right"]].set_visible(False)


def frontier(results: Results, path: Path) -> None:
    """Reward and accuracy against drift: which setting matters most. The run that hacks its reward is not drawn."""
    figure = Figure(figsize=(11, 8), layout="constrained")
    axes = figure.subplots(2, 2, sharex=True, sharey="row")
    strategies = {name: (f"KL {label}", colour, "o") for (name, label), colour in zip(KL.items(), COLOURS, strict=True)}
    strategies["best"] = ("recipe lab-fast", "#D55E00", "D")
    sizes = {
        size_name(lr, prompts): (f"lr {lr:g}, {prompts * GENERATIONS} videos", colour, marker)
        for lr, colour in zip(RATES, ("#56B4E9", "#0072B2", "#CC79A7"), strict=True)
        for prompts, marker in zip(PROMPTS, ("v", "^"), strict=True)
    }
    titles = ("KL strategies at equal iterations", "learning rate and videos an iteration, at equal cost")
    for column, (marks, title) in enumerate(zip((strategies, sizes), titles, strict=True)):
        _points(axes[0][column], results, results.accuracy, marks)
        _points(axes[1][column], results, results.gain, marks)
        axes[0][column].set_title(title, fontsize=11)
        axes[0][column].legend(fontsize=9, frameon=False)
        axes[1][column].set_xlabel("rise of the distance to the manifold (held out; left is better)")
    axes[0][0].set_ylabel("prompts followed (held out)")
    axes[1][0].set_ylabel("gain in reward on fresh videos")
    figure.suptitle("Accuracy and reward against drift (mean ± standard error over seeds)", fontsize=12)
    figure.savefig(path, dpi=120)
