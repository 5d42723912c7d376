"""`sage-grpo explain`: what a kernel does at every step of a schedule."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table as Grid

from sage_grpo.cli.arguments import finite, writable_picture
from sage_grpo.cli.errors import user_errors

if TYPE_CHECKING:
    from sage_grpo.math.kernels import KernelTable

KERNELS_HELP = "SDE of the rollout: ode, dance, flow, sage, cps, cps_unscaled, precise or dance_precise."


def explain(
    kernel: Annotated[str, typer.Option(help=KERNELS_HELP)] = "sage",
    steps: Annotated[int, typer.Option(help="Number of sampling steps.")] = 20,
    shift: Annotated[float, typer.Option(help="Above 1 spends more steps at high noise.", callback=finite)] = 5.0,
    eta: Annotated[float, typer.Option(help="Exploration noise; 0 is the plain ODE.", callback=finite)] = 0.7,
    order: Annotated[
        int, typer.Option(min=1, max=2, help="2 extrapolates the clean estimate, where the kernel has that form.")
    ] = 1,
    plot: Annotated[
        Path | None,
        typer.Option(help="Draw the noise of all kernels in the three regimes of Figure 9.", callback=writable_picture),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON row per step instead of a table.")] = False,
) -> None:
    """Show a kernel's table: the three numbers per step that the whole method follows from.

    A step is x' = a·x + b·v + s·ε. The table shows the noise level σ, the noise s = √Σ that a step adds, and the
    weight |b| of the velocity. N = |b|/√Σ is the gradient scale, and S = median(N)/N the equalizer that balances it.
    With --order 2 a step is x' = a·x + b·v + e·x̂0₋ + s·ε, where x̂0₋ is the clean estimate of the step before.

    Example: `sage-grpo explain --kernel sage --steps 20 --shift 5 --eta 0.7 --plot kernels.png`
    """
    from sage_grpo.config.algorithm import SamplingConfig
    from sage_grpo.config.load import validate
    from sage_grpo.math.kernels import kernel_table
    from sage_grpo.math.schedule import sigma_schedule

    with user_errors(ValueError, OSError):
        validate({"steps": steps, "shift": shift, "eta": eta}, SamplingConfig)
        sigmas = sigma_schedule(steps, shift)
        table = kernel_table(kernel, sigmas, eta, order)
        if plot is not None:
            from sage_grpo.report.kernels import draw_regimes

            draw_regimes(sigmas, eta, plot)
    if as_json:
        print(rows_as_json(table))
        return
    print_table(table, kernel, shift, eta)
    if plot is not None:
        Console().print(f"Drew {plot}", highlight=False)


def rows_as_json(table: KernelTable) -> str:
    """A JSON list with one row a line; the equalizer of a step without noise is null."""
    from sage_grpo.math.equalizer import equalizer

    names = ("sigma", "sigma_next", "a", "b", "e", "std", "equalizer")
    columns = (table.sigma, table.sigma_next, table.a, table.b, table.e, table.s, equalizer(table))
    rows = [dict(zip(names, values, strict=True)) for values in zip(*(c.tolist() for c in columns), strict=True)]
    return "[\n" + ",\n".join(json.dumps(row | {"equalizer": row["equalizer"] or None}) for row in rows) + "\n]"


def print_table(table: KernelTable, kernel: str, shift: float, eta: float) -> None:
    from sage_grpo.math.equalizer import equalizer, gradient_scale
    from sage_grpo.math.kernels import KERNELS

    second = ", second order" if table.order == 2 else ""
    grid = Grid(title=f"{kernel}: {len(table)} steps, shift {shift:g}, eta {eta:g}{second}", box=box.SIMPLE_HEAD)
    for heading in ("step", "σ", "noise √Σ", "|b|", "gradient N", "equalizer S", *(["|e|"] if second else [])):
        grid.add_column(heading, justify="right")
    scale, weight = gradient_scale(table), equalizer(table)
    columns = (table.sigma, table.s, table.b.abs(), scale, weight, table.e.abs())
    for i, (sigma, s, b, n, w, e) in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
        noisy = (f"{n:.4f}", f"{w:.3f}") if s > 0 else ("–", "–")
        before = ([f"{e:.4f}"] if e else ["–"]) if second else []
        grid.add_row(str(i), f"{sigma:.4f}", f"{s:.4f}", f"{b:.4f}", *noisy, *before)
    console = Console()
    console.print(grid)
    if table.order == 2 and not KERNELS[kernel].holds_x0:
        console.print(f"{kernel} has no form of second order: only its steps without noise become more exact.")
    on = table.stochastic
    if not on.any():
        console.print("No step has noise: this is the plain ODE, and there is nothing for GRPO to learn from.")
        return
    spread = (scale[on].max() / scale[on].min()).item()
    console.print(f"Gradients differ by a factor of {spread:.1f} over the steps; the equalizer removes it.")
    if table.s[-1] > 0:
        console.print(
            f"The last step leaves noise of {table.s[-1].item():.3f} in the video; training ends with an ODE step "
            "instead unless last_step is 'kernel'."
        )
    if not KERNELS[kernel].converges:
        console.print(f"{kernel} does not converge to the model's own distribution as steps grow.")
