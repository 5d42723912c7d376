"""`sage-grpo rehearse`: a recipe at toy size, run from loading to export and sample videos."""

import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from sage_grpo.config import ConfigError, RecipeConfig, dump_recipe
from sage_grpo.distributed.launch import launch
from sage_grpo.inference.export import export_run
from sage_grpo.inference.sample import open_source, sample_videos, write_samples
from sage_grpo.preflight.rehearsal import worker
from sage_grpo.preflight.rehearsal.toy import Rehearsal, find_monitors, find_prompts, find_rewards, shrink
from sage_grpo.progress import Emit
from sage_grpo.registry import load_trusted_recipe, resolve_model
from sage_grpo.training import build
from sage_grpo.weights.export import load_adapters


def rehearse(
    source: str | Path,
    overrides: Sequence[str],
    folder: Path,
    console: Console,
    emit: Emit = print,
    processes: int | None = None,
) -> Rehearsal:
    """Run a recipe at toy size: two iterations with a resume between them, export and sample. Return a record of it.

    What a real run would raise is raised here. `folder` must be new or empty. `processes` is the number of processes on
    this computer; None for two on each axis of the recipe's layout.
    """
    config, record = load_trusted_recipe(source, overrides), Rehearsal(str(source))
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty; a rehearsal needs a folder of its own")
    folder.mkdir(parents=True, exist_ok=True)
    small = find_monitors(shrink(config, folder, record, processes), record)
    adapter = resolve_model(config.model.type)
    if build.resizable(adapter):
        emit("1 of 4: making a tiny checkpoint of the same classes")
        with record.phase("checkpoint of the same classes"):
            adapter.tiny().save_pretrained(str(folder / "checkpoint"))
    if small.parallel.processes == 1:
        worker.run_iterations(config, small, folder, record, lambda text: emit(f"2 of 4: {text}"), console)
    else:
        _launch(config, small, folder, record, emit)

    merge = not build.resizable(adapter)  # adapters alone are for diffusers
    if merge and small.tuning.min_sigma:
        record.stand_ins.append("export: left out; adapters with min_sigma are not merged, nor saved alone here")
    else:
        emit("3 of 4: export")
        with record.phase("export"):  # the recipe is the caller's own
            written = export_run(folder / "run", folder / "export", merge=merge, trust_code=True)
        record.facts["export"] = written["kind"]
        with record.phase("load the export"):
            record.facts["export loads"] = _load_export(small, folder)
    emit("4 of 4: sample")
    with record.phase("sample"):
        opened = open_source(folder / "run", trust_code=True)
        prompts = list(build.build_prompts(small, find_prompts(config, folder, Rehearsal("")))(0, 1))
        write_samples(folder / "samples", prompts, [("rehearsed", sample_videos(opened, prompts, 0))], 0)
    return record


def _launch(config: RecipeConfig, small: RecipeConfig, folder: Path, record: Rehearsal, emit: Emit) -> None:
    find_rewards(config, record)  # what is wrong with them comes before anything is started
    find_prompts(config, folder, record)
    (folder / worker.ORIGINAL).write_text(dump_recipe(config))
    (folder / worker.SMALL).write_text(dump_recipe(small))
    progress = folder / worker.PROGRESS

    def look() -> None:
        doing = progress.read_text() if progress.exists() else "starting"
        emit(f"2 of 4, {small.parallel.processes} processes: {doing}")

    launch(small.parallel.processes, worker.__name__, [str(folder)], folder, look)
    answer = json.loads((folder / worker.RECORD).read_text())
    record.covered |= answer["covered"]
    record.facts |= answer["facts"]


def _load_export(config: RecipeConfig, folder: Path) -> str:
    """Load the export as a user would, and return in words how it was loaded.

    A whole checkpoint is loaded by its path. Adapters are loaded into the base checkpoint.
    """
    adapter = resolve_model(config.model.type)
    if not build.resizable(adapter):
        exported = config.model.model_copy(update={"path": str(folder / "export")})
        build.build_model(config.model_copy(update={"model": exported}))
        return "as a recipe's model"
    pipeline = adapter.pipeline_class
    if config.tuning.mode == "full":
        pipeline.from_pretrained(str(folder / "export"))
    else:
        load_adapters(pipeline.from_pretrained(str(folder / "checkpoint")), folder / "export")
    return "by plain diffusers"
