"""The export of a run's weights to a folder that plain diffusers loads, with a README that shows how to load it."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from sage_grpo.core.rollout import SAME_SIGMA
from sage_grpo.core.video_model import VideoModel
from sage_grpo.distributed.device import HOST
from sage_grpo.inference.reopen import OpenedRun, open_run
from sage_grpo.weights.export import FILE, export


def export_run(
    path: Path,
    out: Path,
    *,
    merge: bool = False,
    average: bool = True,
    dtype: str | None = None,
    trust_code: bool = False,
) -> dict[str, Any]:
    """Write a run's trained weights into the folder `out`, and return a summary of what was written.

    The folder is written next to `out` and then renamed, so that it is complete or does not exist. All work is done on
    the host, so that no GPU is needed.

    Args:
        path: A run folder, or one of its checkpoints.
        out: The folder to write.
        merge: Whether adapters are merged into the weights.
        average: Whether averaged weights are used, if the run kept them.
        dtype: Precision of the written weights, by its name in torch; None keeps that of the model, with float32 for
            merged layers.
        trust_code: Whether the recipe may name a model that is not built in, whose code is then run.

    Returns:
        A summary: the folder, its kind (`lora` or `full`), its size in megabytes, and what survives of a merged update.
        Also the iteration and checkpoint of the weights, and whether they are averaged.
    """
    run = open_run(path, average=average, overrides=[f"tuning.device={HOST}"], trust_code=trust_code)
    work = out.with_name(f".{out.name}.part")
    shutil.rmtree(work, ignore_errors=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    try:
        told = export(run.model, work, merge=merge, dtype=getattr(torch, dtype) if dtype else None)
        (work / "README.md").write_text(readme(run, told["kind"], out) + precision_note(told["update"]))
        work.rename(out)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    size = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    return {
        "out": str(out),
        **told,
        "averaged": run.averaged,
        "iteration": run.iteration,
        "checkpoint": str(run.checkpoint),
        "megabytes": size / 1e6,
    }


def readme(run: OpenedRun, kind: str, out: Path) -> str:
    c = run.config
    head = f"# {out.name}\n\nPost-trained for {run.iteration} iterations from `{c.model.path or c.model.type}`"
    head += " with SAGE-GRPO" + (" (averaged weights)" if run.averaged else "") + ".\n\n"
    pipe = run.model.pipe
    if pipe is None:
        return head + f"Load it with `model: {{type: {c.model.type}, path: {out}}}` in a recipe.\n"
    lines, place = ["from diffusers import DiffusionPipeline", ""], str(out)
    if kind == "full":
        lines.append(f"pipe = DiffusionPipeline.from_pretrained({place!r})")
    else:
        lines.append(f"pipe = DiffusionPipeline.from_pretrained({c.model.path!r})")
        if hasattr(pipe, "load_lora_weights"):
            lines.append(f"pipe.load_lora_weights({place!r})")
            if getattr(pipe, "transformer_2", None) is not None:
                second = f"{place}/transformer_2"
                lines.append(f"pipe.load_lora_weights({second!r}, load_into_transformer_2=True)")
        else:
            lines.append(f"pipe.transformer.load_lora_adapter({place!r}, weight_name={FILE!r})")
    if kind == "lora" and run.model.min_sigma:
        lines += switch_lines(run.model)
        head += f"The adapter acts at noise levels σ from {run.model.min_sigma} upwards. The lines below switch it off "
        head += "at lower ones, and all other adapters of the network with it. In ComfyUI, end its schedule there.\n\n"
    return head + "```python\n" + "\n".join(lines) + "\n```\n"


def switch_lines(model: VideoModel) -> list[str]:
    """Return the lines of code that switch the adapters of a diffusers pipeline off below `model.min_sigma`."""
    names = [name for name in ("transformer", "transformer_2") if getattr(model.pipe, name, None) is not None]
    return [
        "",
        "",
        "def switch(network, inputs):",
        "    sigma = pipe.scheduler.sigmas[pipe.scheduler.step_index or 0]",
        f"    network.enable_adapters() if sigma >= {model.min_sigma - SAME_SIGMA:g} else network.disable_adapters()",
        "",
        "",
        *(f"pipe.{name}.register_forward_pre_hook(switch)" for name in names),
    ]


def precision_note(update: Mapping[str, Mapping[str, float]] | None) -> str:
    """Return a README section on how much of a merged update survives rounding; empty if nothing was merged.

    The section helps to choose the precision to load the model in. `update` has the figures `survives` and
    `rounding_error` by precision.
    """
    if update is None:
        return ""
    lines = [f"- {told}" for told in survival_lines(update)]
    return (
        "\n## Precision\n\nThe adapter was merged in float32, then rounded once. What is left of its update:\n\n"
        + "\n".join(lines)
        + "\n\n`survives` is ⟨written - W, ΔW⟩/‖ΔW‖² and the rounding error is ‖written - W - ΔW‖/‖ΔW‖, over all "
        "merged layers. Loading in a lower precision rounds again. An adapter beside its base model loses nothing.\n"
    )


def survival_lines(update: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Return one line per precision on how much of a merged update survives in it, the written precision first."""
    written = next(iter(update))
    return [
        f"{name} ({'as written' if name == written else 'if it is loaded so'}): {now['survives']:.1%} survives, "
        f"rounding error {now['rounding_error']:.1%} of the update"
        for name, now in update.items()
    ]
