"""The laboratory's versions of the paper's Figures 3, 4, 7, 8 and 9, with bands over seeds."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from research.claims import Measure, Results
from research.grid import GENERATIONS, KERNELS, PROMPTS, RATES, TARGET, TRAINED, size_name
from sage_grpo.drawing import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILION, drawn, legend_below
from sage_grpo.report.kernels import STYLE

KL = {"kl-none": "none", "kl-fixed": "fixed", "kl-step": "step", "kl-moving": "moving", "kernel-sage": "dual"}
COLOURS = (GREY, ORANGE, GREEN, SKY, BLUE)


def _band(ax: Axes, runs: dict[int, dict[str, Any]], key: str, label: str, colour: str, smooth: int = 5) -> None:
    """Draw the mean over seeds of a curve's running mean, with the standard error as band."""
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
    ax.plot(steps, mean, color=colour, label=label)
    ax.fill_between(steps, mean - error, mean + error, color=colour, alpha=0.18, linewidth=0)


def seeds_of(results: Results) -> str:
    """Return the number of seeds as text, such as `20 seeds`. All experiments must have the same number."""
    (count,) = {len(runs) for runs in results.runs.values()}
    return f"{count} seeds"


def figure_3(results: Results, path: Path) -> None:
    title = "Effect of the gradient equalizer, by kernel (mean ± standard error over seeds)"
    with drawn(path, 3.4, title) as figure:
        axes = figure.subplots(1, len(TRAINED), sharey=True)
        for ax, kernel in zip(axes, TRAINED, strict=True):
            _band(ax, results.runs[f"kernel-{kernel}"], "reward/mean", "equalizer on", BLUE, 8)
            _band(ax, results.runs[f"kernel-{kernel}-unequal"], "reward/mean", "equalizer off", VERMILION, 8)
            ax.set(title=kernel, xlabel="iteration")
        axes[0].set_ylabel("reward of rollouts")
        legend_below(figure)


def figure_4(direct: dict[str, Any], path: Path) -> None:
    raw, equal = direct["gradient"]["raw"], direct["gradient"]["equalized"]
    scale = np.array(raw["scale"])
    predicted = scale * np.exp(np.mean(np.log(raw["norm"]) - np.log(scale)))
    with drawn(path, 4.4, "Gradient norm by timestep, kernel sage") as figure:
        ax = figure.subplots()
        ax.semilogy(raw["sigma"], raw["norm"], "o-", color=VERMILION, label="measured, raw")
        ax.semilogy(raw["sigma"], predicted, "--", color=GREY, label="N = |b|/√Σ, scaled")
        ax.semilogy(equal["sigma"], equal["norm"], "D-", color=BLUE, label="measured, equalized")
        ax.set(xlabel="noise level σ", ylabel="norm of the parameter gradient")
        legend_below(figure)


def figure_7(results: Results, path: Path) -> None:
    names = {
        "kernel-sage": ("constant", GREY),
        "lambda-two-stage": ("two-stage", ORANGE),
        "lambda-lagrangian": ("feedback, Lagrangian", BLUE),
        "lambda-paper": ("feedback, as printed", VERMILION),
    }
    panels = {"reward/mean": "reward of rollouts", "kl_weight": "weight λ", "kl/penalty": "KL of an update"}
    results = results.common(names)
    title = f"Schedules and feedback for the KL weight (mean ± standard error over {seeds_of(results)})"
    with drawn(path, 3.6, title) as figure:
        axes = figure.subplots(1, len(panels))
        for ax, (key, said) in zip(axes, panels.items(), strict=True):
            for name, (label, colour) in names.items():
                _band(ax, results.runs[name], key, label, colour, 8 if key == "reward/mean" else 1)
            ax.set(title=said, xlabel="iteration")
        axes[1].set_yscale("log")
        axes[2].set_yscale("log")
        axes[2].axhline(TARGET, color=BLACK, linestyle=":", linewidth=1, label="target of the feedback")
        legend_below(figure)


def figure_8(results: Results, path: Path) -> None:
    panels = {
        "reward/mean": "reward of rollouts",
        "reward/std": "std of rewards",
        "drift/base_error": "base model's error",
        "drift/diversity": "diversity in a group",
    }
    results = results.common(KL)
    title = f"KL strategies (mean ± standard error over {seeds_of(results)}; error and diversity relative to the start)"
    with drawn(path, 3.4, title) as figure:
        for ax, (key, said) in zip(figure.subplots(1, len(panels)), panels.items(), strict=True):
            for (name, label), colour in zip(KL.items(), COLOURS, strict=True):
                _band(ax, results.runs[name], key, label, colour, 8 if key.startswith("reward") else 1)
            ax.set(title=said, xlabel="iteration")
        legend_below(figure)


def figure_9(direct: dict[str, Any], path: Path) -> None:
    with drawn(path, 4.2, "Noise that is left after a step, and where rollouts of the base model end") as figure:
        left, right = figure.subplots(1, 2)
        for kernel, noise in direct["noise"].items():
            colour, marker = STYLE[kernel]
            left.plot(noise["sigma"], noise["theory"], "-", color=colour)
            left.plot(noise["sigma"], noise["measured"], marker, color=colour, label=kernel)
        left.set(title="noise after a step / σ' (line: closed form, marks: model)")
        left.set_xlabel("noise level σ before the step")
        places = np.arange(len(KERNELS))
        colours = [STYLE[kernel][0] for kernel in KERNELS]
        for offset, ending, hatch in ((-0.2, "noisy", "//"), (0.2, "clean", "")):
            values = [np.mean(direct["quality"][f"{kernel}-{ending}"]) for kernel in KERNELS]
            right.bar(places + offset, values, 0.38, color=colours, hatch=hatch, edgecolor="white")
        right.set_xticks(places, KERNELS)
        right.set_title("distance to the manifold (hatched: noisy last step)")
        legend_below(figure)


def _points(ax: Axes, results: Results, measure: Measure, marks: dict[str, tuple[str, str, str]]) -> None:
    """Draw one point per experiment: a measure on fresh videos against drift, with standard errors.

    `marks` has the label, colour and marker of each experiment.
    """
    for name, (label, colour, marker) in marks.items():
        gain, drift = (list(found.values()) for found in (measure(name), results.drift(name)))
        root = np.sqrt(len(gain))
        errors = {"xerr": np.std(drift, ddof=1) / root, "yerr": np.std(gain, ddof=1) / root} if root > 1 else {}
        ax.errorbar(np.mean(drift), np.mean(gain), **errors, fmt=marker, color=colour, label=label, linewidth=1)
    ax.axvline(0, color=BLACK, linewidth=0.8)


def frontier(results: Results, path: Path) -> None:
    """Draw reward and accuracy against drift, to show which setting matters most, and write the figure to `path`.

    The run that hacks its reward is not drawn.
    """
    strategies = {name: (f"KL {label}", colour, "o") for (name, label), colour in zip(KL.items(), COLOURS, strict=True)}
    strategies["best"] = ("recipe lab-fast", VERMILION, "D")
    sizes = {
        size_name(lr, prompts): (f"lr {lr:g}, {prompts * GENERATIONS} videos", colour, marker)
        for lr, colour in zip(RATES, (SKY, BLUE, PURPLE), strict=True)
        for prompts, marker in zip(PROMPTS, ("v", "^"), strict=True)
    }
    results = results.common([*strategies, *sizes])
    titles = ("KL strategies at equal iterations", "learning rate and videos per iteration, at equal cost")
    title = f"Accuracy and reward against drift (mean ± standard error over {seeds_of(results)})"
    with drawn(path, 7.5, title) as figure:
        axes = figure.subplots(2, 2, sharex=True, sharey="row")
        for column, (marks, title) in enumerate(zip((strategies, sizes), titles, strict=True)):
            _points(axes[0][column], results, results.accuracy, marks)
            _points(axes[1][column], results, results.gain, marks)
            axes[0][column].set_title(title)
            axes[0][column].legend()
            axes[1][column].set_xlabel("rise of the distance to the manifold (held out; left is better)")
        axes[0][0].set_ylabel("prompts followed (held out)")
        axes[1][0].set_ylabel("gain in reward on fresh videos")
