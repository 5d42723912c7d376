"""Plans and sweeps as JSON and as tables on the console."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from sage_grpo.config import RecipeConfig
from sage_grpo.preflight.plan.assumptions import Assumption, assume, kernel_of, rows
from sage_grpo.preflight.plan.estimate import FRACTION, PIXELS, Plan
from sage_grpo.preflight.plan.interruptions import GPU_HOURS_PER_FAILURE, lost_share
from sage_grpo.preflight.plan.memory import Phase
from sage_grpo.preflight.plan.proposals import Proposal
from sage_grpo.preflight.plan.sweep import Cell, pays

UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
INDEXED = 2**31  # elements that 32 bits can count


def in_units(size: float) -> str:
    return next((f"{size / unit:.2f} {name}" for unit, name in UNITS if size >= unit), f"{size:.0f} B")


def in_time(seconds: float) -> str:
    for unit, name in ((86400 * 3, "days"), (3600, "h"), (60, "min")):
        if seconds >= unit:
            return f"{seconds / (86400 if name == 'days' else unit):.1f} {name}"
    return f"{seconds:.3g} s"


def in_number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def disk(plan: Plan) -> dict[str, float]:
    run = plan.config.run
    sample_rounds = run.iterations // run.sample_every + 1 if run.sample_every else 0
    kept = run.keep + 1 + (run.iterations // run.keep_every if run.keep_every else 0)
    return {
        "checkpoints": float(plan.held.checkpoint * kept),  # the next is written before the oldest goes
        "samples": sample_rounds * run.samples * run.samples_each * plan.sample_video / 3 * PIXELS,
        "encoded prompts": float(plan.encoding.stored),
    }


def assumptions(plan: Plan, gpu: str) -> list[str]:
    kernel, calibrated = kernel_of(plan.config.tuning.attention), plan.known.calibrated
    usual = assume("expected", kernel, wide=plan.gpu.wide, calibrated=calibrated)
    lines = [
        f"{gpu}: {usual.matrices:.0%} of its arithmetic in matrix products, {usual.attention:.0%} in attention, "
        f"{usual.convolutions:.0%} in convolutions, {usual.memory:.0%} of its memory's and {usual.links:.0%} of its "
        f"links' speed; {usual.exposed:.0%} of the messages of weights do not overlap; --explain prints all of them",
        f"a failure every {GPU_HOURS_PER_FAILURE:,.0f} GPU-hours (Llama 3), {plan.saving.restart:.0f} s to start again",
        f"{plan.score_seconds:g} s of waiting for the scores of a video",
    ]
    if calibrated:
        lines.append(f"seconds as calibrated by a run on {plan.known.gpu or gpu}")
    else:
        lines.append("seconds are not measured: run three iterations, then --measured RUN")
    if plan.typical_text:
        lines.append(f"prompts of {plan.typical_text} tokens: this model computes with as many as a prompt has")
    if plan.memory.uncounted:
        lines.append(f"memory of {', '.join(plan.memory.uncounted)} is not known and not counted")
    return lines


def used_rows(plan: Plan) -> dict[str, Assumption]:
    return dict(rows(kernel_of(plan.config.tuning.attention), wide=plan.gpu.wide))


def spread(plan: Plan, figure: Callable[[Plan], float]) -> dict[str, float]:
    """Return a figure of a plan as `low`, `expected` and `high`, from the slow, the expected and the fast case.

    `figure` computes the figure from the plan of one case. The smaller of the slow and fast values is `low`.
    """
    low, high = sorted((figure(plan.slow), figure(plan.fast)))
    return {"low": low, "expected": figure(plan), "high": high}


def ranges(plan: Plan, price: float | None) -> dict[str, dict[str, float]]:
    """Return the figures that depend on the assumptions by name, each as `low`, `expected` and `high`.

    `price` is that of a GPU-hour. If it is None, the cost is left out.
    """
    figures: dict[str, Callable[[Plan], float]] = {
        "seconds_per_iteration": lambda case: case.iteration,
        "videos_per_gpu_hour": lambda case: case.videos_per_gpu_hour,
        "mfu": lambda case: case.mfu,
        "encode_seconds": lambda case: case.encoding.seconds,
        "hours": lambda case: case.hours,
        "gpu_hours": lambda case: case.hours * case.gpus,
    }
    if price is not None:
        figures["cost"] = lambda case: case.hours * case.gpus * price
    return {name: spread(plan, figure) for name, figure in figures.items()}


def between(range_: dict[str, float], show: Callable[[float], str]) -> str:
    """Return a range as the text `expected (low to high)`, or one value if low and high look the same.

    `show` makes a text from a value.
    """
    low, usual, high = (show(range_[name]) for name in ("low", "expected", "high"))
    return usual if low == high else f"{usual} ({low} to {high})"


def warnings(plan: Plan) -> list[str]:
    if plan.convolution <= INDEXED:
        return []
    return [
        f"decoding has a convolution of {plan.convolution / INDEXED:.2f} × 2^31 elements, which older cuDNN refuses or "
        "answers with a large workspace; use tuning.vae_tiling=true"
    ]


def summary(plan: Plan, gpu: str, price: float | None) -> dict[str, Any]:
    """Return the plan as values for JSON. Memory is in bytes and time in seconds, unless the name says otherwise.

    `price` is that of a GPU-hour. If it is None, so is the cost.
    """
    config, counts, every = plan.config, plan.counts, plan.best_save_every
    gpu_hours = plan.hours * plan.gpus
    return {
        "gpus": plan.gpus,
        "gpu": gpu,
        "tokens": plan.tokens,
        "tflop_per_forward": plan.flops_per_forward / 1e12,
        "parameters": plan.held.parameters,
        "trained": plan.held.trained,
        "layout": config.parallel.model_dump(mode="json"),
        "videos_per_iteration": config.rollouts,
        "videos_per_replica": config.rollouts // config.parallel.replicas,
        "videos_per_gpu_hour": plan.videos_per_gpu_hour,
        "range": ranges(plan, price),
        "memory_per_rank": {
            **plan.memory.parts,
            "peak": plan.memory.peak,
            "by_phase": plan.memory.phases,
            "host": plan.memory.host,
            "capacity": plan.gpu.memory,
            "fits": plan.fits,
        },
        "passes": {
            "forward": counts.forward,
            "backward": counts.backward,
            "rollout": counts.rollout,
            "anchor": counts.anchor,
            "old policy": counts.old,
            "training": counts.training + counts.untrained,
            "recomputed": counts.again,
            "gauge": counts.gauge,
            "samples": counts.samples,
        },
        "pflop_per_iteration": plan.flops / 1e15,
        "useful_pflop_per_iteration": plan.useful_flops / 1e15,
        "peak_tflops_per_gpu": plan.gpu.flops / 1e12,
        "bytes_moved_per_rank": plan.moved,
        "seconds": {**plan.seconds, "iteration": plan.iteration},
        "encode": {
            "prompts": plan.encoding.prompts,
            "seconds": plan.encoding.seconds,
            "bytes": plan.encoding.stored,
            "memory_per_rank": plan.memory.phases["encode"],
        },
        "attention_shape": list(plan.attention),
        "bound": plan.passes["training"].bound,
        "mfu": plan.mfu,
        "disk": disk(plan) | {"checkpoint": float(plan.held.checkpoint)},
        "run": {
            "iterations": config.run.iterations,
            "hours": plan.hours,
            "gpu_hours": gpu_hours,
            "cost": None if price is None else gpu_hours * price,
        },
        "interruptions": {
            "hours_between": plan.between_failures / 3600,
            "expected": plan.hours * 3600 / plan.between_failures,
            "save_every": config.run.save_every,
            "lost_share": plan.lost,
            "best_save_every": every,
            "best_lost_share": lost_share(every * plan.iteration, plan.saving, plan.between_failures),
        },
        "warnings": warnings(plan),
        "assumptions": assumptions(plan, gpu),
        "assumed": {name: asdict(row) for name, row in used_rows(plan).items()},
        "calibrated": plan.known.calibrated,
    }


def table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    grid = Table(title=title, title_justify="left")
    for i, column in enumerate(header):
        grid.add_column(column, justify="right" if i else "left")
    for row in rows:
        grid.add_row(*row)
    return grid


def show(plan: Plan, gpu: str, price: float | None, console: Console) -> None:
    figures, memory = summary(plan, gpu, price), plan.memory
    tokens = f"{plan.tokens:,} tokens a video, " if plan.tokens else ""
    console.print(
        f"{figures['parameters'] / 1e9:.2f}B parameters, {figures['trained'] / 1e6:,.0f}M trained; "
        f"{tokens}{figures['tflop_per_forward']:,.0f} TFLOP a forward pass",
        highlight=False,
    )
    rows = [[part, in_units(size)] for part, size in memory.parts.items() if size]
    console.print(table("Memory of the fullest GPU, by part", ["", "bytes"], rows))
    rows = [[phase, in_units(size), f"{size / plan.gpu.memory:.0%}"] for phase, size in memory.phases.items()]
    console.print(table("and by phase", ["", "bytes", f"of {in_units(plan.gpu.memory)}"], rows))
    verdict = "[green]fits[/]" if plan.fits else "[bold red]does not fit[/]"
    console.print(f"{verdict}: {in_units(memory.peak)} at most; {FRACTION:.0%} of a GPU may be used", highlight=False)
    if not plan.fits:
        console.print(advice(plan), highlight=False)
    for line in figures["warnings"]:
        console.print(f"[yellow]warning:[/] {line}", highlight=False)
    slow, fast = plan.slow.seconds, plan.fast.seconds
    seconds = [
        [phase, in_time(fast[phase]), in_time(value), in_time(slow[phase]), f"{value / plan.iteration:.0%}"]
        for phase, value in plan.seconds.items()
        if value
    ]
    seconds.append(["an iteration", *map(in_time, (plan.fast.iteration, plan.iteration, plan.slow.iteration)), ""])
    console.print(table("Time of an iteration", ["", "low", "expected", "high", "share"], seconds))
    told = figures["range"]
    source = "as a run measured" if plan.known.calibrated else "not measured"
    console.print(f"{between(told['videos_per_gpu_hour'], in_number)} videos per GPU-hour, {source}", highlight=False)
    counts = plan.counts
    console.print(
        f"{figures['videos_per_iteration']} videos, {counts.forward:,.0f} forward and {counts.backward:,.0f} backward "
        f"passes, {figures['pflop_per_iteration']:,.1f} PFLOP, "
        f"{between(told['mfu'], lambda x: f'{x:.0%}')} of the GPUs' arithmetic; bound by "
        f"{figures['bound']}; "
        + ", ".join(f"{in_units(size)} of {what}" for what, size in plan.moved.items() if size)
        + " moved by a GPU",
        highlight=False,
    )
    if plan.encoding.prompts:
        console.print(
            f"before that, at most {plan.encoding.prompts:,} prompts are encoded once: "
            f"{between(told['encode_seconds'], in_time)}, {in_units(plan.encoding.stored)} on disk",
            highlight=False,
        )
    run, stops = figures["run"], figures["interruptions"]
    cost = f", {between(told['cost'], lambda x: f'{x:,.0f}')} at {price:g} a GPU-hour" if price is not None else ""
    console.print(
        f"{run['iterations']:,} iterations: {between(told['hours'], lambda x: in_time(x * 3600))}, "
        f"{between(told['gpu_hours'], lambda x: f'{x:,.0f}')} GPU-hours{cost}; "
        f"disk {in_units(sum(disk(plan).values()))}",
        highlight=False,
    )
    console.print(
        f"a failure every {in_time(plan.between_failures)}, {stops['expected']:.1f} in the run; saving every "
        f"{stops['save_every']} iterations loses {stops['lost_share']:.2%} of the time, every "
        f"{stops['best_save_every']} {stops['best_lost_share']:.2%}",
        highlight=False,
    )
    for line in figures["assumptions"]:
        console.print(f"[dim]assumed: {line}[/]", highlight=False)


def proposal_line(proposal: Proposal) -> str:
    return (
        f"[green]faster:[/] {proposal.change} saves {proposal.saves:.1%} of an iteration, {proposal.saves_if_slow:.1%} "
        f"if GPUs and links are slow, and needs {in_units(proposal.memory)}; not measured"
    )


def show_assumptions(plan: Plan, gpu: str, console: Console) -> None:
    """Print the table of assumptions behind a plan, each with a sentence on where it comes from."""
    grid = Table(title=f"Assumed of {gpu}; nothing of it is measured", title_justify="left")
    for name in ("slow", "expected", "fast"):
        grid.add_column(name, justify="right")
    grid.add_column("what")
    grid.add_column("where it comes from")
    for row in used_rows(plan).values():
        grid.add_row(*(f"{value:.3g}" for value in (row.slow, row.expected, row.fast)), row.what, row.source)
    console.print(grid)
    if plan.known.calibrated:
        console.print("A calibrated plan uses the range only for the disk and the text encoders.", highlight=False)


def advice(plan: Plan) -> str:
    """Return what to change first if memory is short, in a sentence about the phase that needs the most memory."""
    phase = max(plan.memory.phases, key=plan.memory.phases.__getitem__)
    possible = [text for text, sensible in remedies(plan.config)[phase] if sensible]
    return f"fullest while it is in the phase {phase!r}; try {', then '.join(possible) or 'a GPU with more memory'}"


def remedies(config: RecipeConfig) -> dict[Phase, list[tuple[str, bool]]]:
    """Return, for each phase, the changes that reduce its memory, the mildest first.

    Each change comes with whether it makes sense: False if the recipe has made this change already, or cannot use it.
    """
    policy, tuning = config.policy, config.tuning
    full = tuning.mode == "full"
    smaller = ("fewer frames or a smaller picture", True)
    fewer_held = [("policy.batch_size=1", policy.batch_size > 1), ("parallel.sequence=2 or more", True)]
    less_held = [
        ("tuning.offload_copies=true", full and not tuning.offload_copies),
        ("more GPUs, which share the weights", True),
        ("tuning.mode=lora", full),
    ]
    away = ("tuning.offload=true", not tuning.offload)
    return {
        "encode": [away, *less_held],
        "rollout": [*fewer_held, *less_held, smaller],
        "decode": [("tuning.vae_tiling=true", not tuning.vae_tiling), away, smaller],
        "score": [("scorers on other GPUs: sage-grpo serve", bool(config.rewards)), *less_held, smaller],
        "step": less_held,
        "train": [
            ("tuning.keep_attention=false", tuning.keep_attention),
            ("tuning.gradient_checkpointing=true", not tuning.gradient_checkpointing),
            *fewer_held,
            *less_held,
            smaller,
        ],
    }


def cell_summary(cell: Cell, price: float | None, cells: Sequence[Cell]) -> dict[str, Any]:
    plan = cell.plan
    base = {"gpus": cell.gpus, "sequence": cell.sequence, "replicate": cell.replicate, "why": cell.why}
    if plan is None:
        return base | {"works": False}
    thousand = plan.iteration * cell.gpus / 3600 / cell.videos * 1000
    return base | {
        "works": True,
        "fits": plan.fits,
        "pays": pays(cell, cells),
        "videos_per_iteration": cell.videos,
        "batch_size": plan.config.policy.batch_size,
        "seconds_per_iteration": plan.iteration,
        "videos_per_gpu_hour": cell.per_gpu_hour,
        "range": ranges(plan, price),
        "gpu_hours_per_1000_videos": thousand,
        "cost_per_1000_videos": None if price is None else thousand * price,
        "memory_per_rank": plan.memory.peak,
        "seconds": plan.seconds,
        "lost_share": plan.lost,
    }


def show_sweep(cells: Sequence[Cell], price: float | None, console: Console) -> None:
    rows = []
    for cell in cells:
        figures = cell_summary(cell, price, cells)
        where = [str(cell.gpus), str(cell.sequence)]
        if not figures["works"]:
            rows.append([*where, "", "", "", "", cell.why])
            continue
        verdict = f"{'yes' if figures['pays'] else 'no'}: {cell.why}"
        rows.append(
            [
                *where,
                str(cell.videos),
                in_time(figures["seconds_per_iteration"]),
                f"{figures['videos_per_gpu_hour']:.3g}",
                in_units(figures["memory_per_rank"]),
                verdict,
            ]
        )
    grid = table("", ["GPUs", "sp", "videos", "iteration", "per GPU-h", "memory", "pays?"], rows)
    grid.columns[-1].justify = "left"
    console.print(grid)
