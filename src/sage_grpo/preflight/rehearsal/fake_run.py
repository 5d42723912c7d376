"""Two whole iterations of a recipe on a fake device without values, with a resume between, by the real trainer."""

import inspect
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

from rich.console import Console
from torch import Tensor
from torch.utils._pytree import tree_flatten_with_path

from sage_grpo.config import RecipeConfig, load_recipe
from sage_grpo.core.callback import Callback, Metrics
from sage_grpo.core.checks import check_direction, check_replay, check_training
from sage_grpo.core.copy_bank import CopyBank
from sage_grpo.core.loop import Loop
from sage_grpo.core.reward import Reward
from sage_grpo.core.update import update
from sage_grpo.core.video_model import VideoModel
from sage_grpo.distributed.device import HOST
from sage_grpo.distributed.fake_group import first_of
from sage_grpo.errors import UserError
from sage_grpo.inference.export import export_run
from sage_grpo.preflight.rehearsal.fake_device import FakeDevice
from sage_grpo.preflight.rehearsal.fake_ledger import Ledger, place_of_error
from sage_grpo.preflight.rehearsal.fake_patches import pretended_cuda
from sage_grpo.preflight.rehearsal.fake_report import FakeCudaReport, Row
from sage_grpo.preflight.rehearsal.toy import (
    Rehearsal,
    find_monitors,
    find_prompts,
    find_rewards,
    lower_min_sigma,
    shrink,
)
from sage_grpo.registry import load_trusted_recipe, resolve_model
from sage_grpo.training import build
from sage_grpo.training.callbacks import Samples, Save, WeightAverage
from sage_grpo.training.drift_gauge import DriftGauge
from sage_grpo.training.encode import encode_ahead
from sage_grpo.training.trainer import Trainer

ITERATION = "load, encode, sample, rollout, decode, score, checks, update, anchor, EMA, gauge, save"
AGAIN = "resume, second iteration"


def phases(model: Any) -> dict[CodeType, str]:
    """Return the name of a run's phase by the code of the function of this project that begins the phase.

    `model` is the class of the model, whose `decode` begins a phase.
    """
    named: dict[Callable[..., Any], str] = {
        Trainer.__init__: "load",
        Trainer._resume: "resume",
        encode_ahead: "encode",
        Samples.write: "sample",
        Loop.rollout: "rollout",
        Loop.score: "score",
        check_replay: "checks",
        check_direction: "checks",
        check_training: "checks",
        Loop.prepare: "update",
        update: "update",
        CopyBank.save: "copies",
        WeightAverage.on_start: "copies",
        WeightAverage.on_update: "copies",
        DriftGauge.on_start: "gauge",
        DriftGauge.on_rollout: "gauge",
        Save.write: "save",
        export_run: "export",
    }
    if isinstance(model, type) and issubclass(model, VideoModel):
        named[model.decode] = "decode"
    return {inspect.unwrap(function).__code__: phase for function, phase in named.items()}


def smallest(config: RecipeConfig, small: RecipeConfig, record: Rehearsal) -> RecipeConfig:
    """Return the recipe at toy size, made smaller still and put on the fake device.

    Without values, one batch shows as much as many. What replaces something, such as processes, is written into
    `record`.
    """
    values, replicas = small.model_dump(mode="json"), small.parallel.replicas
    policy = {
        "prompts_per_iteration": max(replicas // 2, 1),
        "num_iterations": 1,
        "batch_size": 1 if replicas > 1 else 2,
        "flat_groups": "train",  # scores that are made up may be alike
    }
    values["policy"] |= policy
    noisy = small.policy.replay_timesteps
    # one step that a group shares, before those that are trained; the last one may have no noise
    values["sampling"] |= {"steps": noisy + 2, "window": {"size": noisy, "start": 1}}
    values["tuning"] |= {"device": "auto", "compile": None}
    lower_min_sigma(values)
    values["gauge"]["action"] = "warn"  # made-up values are no reason to stop
    if small.parallel.processes > 1:
        record.stand_ins.append(f"processes: the first of {small.parallel.processes}; the others are pretended")
    if config.tuning.compile:
        record.stand_ins.append(f"compile: none for {config.tuning.compile}, which would trace the pretence")
    return load_recipe(values)


class DevicePlacementCheck(Callback):
    """A callback that finds weights, copies and optimizer state on the host that should be on the device."""

    def __init__(self, config: RecipeConfig, gauge: Callable[[], dict[str, Any]]) -> None:
        self.offloaded, self.gauge = config.tuning.offload_copies, gauge
        self.found: dict[str, str] = {}  # what, and what is wrong with it

    def on_start(self, loop: Loop) -> None:
        self.look(loop, f"at the start from iteration {loop.iteration}")

    def on_iteration(self, loop: Loop, metrics: Metrics) -> None:
        self.look(loop, f"after iteration {loop.iteration}")

    def look(self, loop: Loop, when: str) -> None:
        state = loop.state_dict()
        sections = {name: state[name] for name in ("model", "optimizer", "bank")} | {"gauge": self.gauge()}
        lost: dict[str, list[tuple[str, Any]]] = defaultdict(list)
        for path, x in tree_flatten_with_path(sections)[0]:
            section, *rest = (str(getattr(step, "key", getattr(step, "idx", ""))) for step in path)
            if not isinstance(x, Tensor):
                continue
            by_wish = section == "bank" and self.offloaded
            counter = section == "optimizer" and x.dim() == 0  # torch keeps the count of steps on the host
            if x.device.type == HOST.type and not by_wish and not counter:
                lost[f"{section}/{rest[0]}" if section == "bank" else section].append(("/".join(rest), x))
        for what, tensors in lost.items():
            names = ", ".join(name for name, _ in tensors[:3]) + (", …" if len(tensors) > 3 else "")
            origin = getattr(tensors[0][1], "origin", None)
            wish = ", though tuning.offload_copies is off" if what.startswith("bank") else ""
            self.found.setdefault(
                what,
                f"{origin.place if origin else '?'}: {what} is on the host {when}{wish} "
                f"({len(tensors)} of its tensors: {names}); move them with .to(device)",
            )


def act_out(
    source: str, overrides: Sequence[str], folder: Path, emit: Callable[[str], None], processes: int | None = None
) -> FakeCudaReport:
    """Rehearse a recipe on the fake device, in this process, and return the report.

    Every exception, from the recipe or from the run, becomes one of the report's `errors`. `processes` is the size of
    the layout; None for two on each axis of the recipe's layout.
    """
    report, record, ledger = FakeCudaReport(source), Rehearsal(source), Ledger({})
    try:
        emit("1 of 4: making a tiny checkpoint of the same classes")
        config = load_trusted_recipe(source, overrides)
        small = find_monitors(smallest(config, shrink(config, folder, record, processes), record), record)
        report.processes = small.parallel.processes
        ledger.phases = phases(resolve_model(config.model.type))
        _play(_set_up(config, small, folder, record, report), ledger, folder, record, emit)
    except Exception as error:
        report.errors.append(_sentence(error))
    report.covered, report.reduced, report.stand_ins = record.covered, record.reduced, record.stand_ins
    report.rows = [
        Row(e.kind, e.phase, e.place.project, e.place.inside, e.operation, total.count, total.bytes)
        for e, total in ledger.totals.items()
    ]
    return report


def _sentence(error: Exception) -> str:
    """Return an error as text, with the line of this project where it was raised.

    A `UserError` is returned without a line, because it is written for users or names the line itself.
    """
    if isinstance(error, UserError):
        return str(error)
    return f"{place_of_error(error)}: {type(error).__name__}: {error}"


@dataclass(frozen=True)
class Stage:
    """The recipe, rewards, prompts and report that both iterations of a rehearsal share."""

    small: RecipeConfig
    rewards: Sequence[Reward]
    prompts: Any
    report: FakeCudaReport

    def iterate(self, iterations: int) -> None:
        """Train up to iteration number `iterations` with a new trainer, as a new process would.

        Errors and counts are added to the report.
        """
        run = self.small.run.model_copy(update={"iterations": iterations})
        config = self.small.model_copy(update={"run": run})
        trainer = Trainer(config=config, rewards=self.rewards, prompts=self.prompts, console=Console(quiet=True))
        trainer.callbacks.append(watch := DevicePlacementCheck(config, trainer.gauge.state_dict))
        try:
            reached = trainer.train()
        finally:
            self.report.errors += watch.found.values()
        if reached.iterations != iterations:
            self.report.errors.append(f"iteration {iterations} was not reached: {reached.stop_reason}")
        self.report.facts |= {"iterations": reached.iterations, "updates": trainer.loop.updates}


def _set_up(
    config: RecipeConfig, small: RecipeConfig, folder: Path, record: Rehearsal, report: FakeCudaReport
) -> Stage:
    adapter = resolve_model(config.model.type)
    if build.resizable(adapter):
        with record.phase("checkpoint of the same classes"):
            adapter.tiny().save_pretrained(str(folder / "checkpoint"))
    rewards, weights = find_rewards(config, record)
    if small.policy.reward_weights is None:
        small = small.model_copy(update={"policy": small.policy.model_copy(update={"reward_weights": weights})})
    return Stage(small, rewards, find_prompts(config, folder, record), report)


def _play(stage: Stage, ledger: Ledger, folder: Path, record: Rehearsal, emit: Callable[[str], None]) -> None:
    processes = stage.small.parallel.processes
    with pretended_cuda():
        with first_of(processes), FakeDevice(ledger):
            for i, part in enumerate((ITERATION, AGAIN), 1):
                emit(f"{i + 1} of 4: {part}")
                with record.phase(part):
                    stage.iterate(i)
        if processes > 1:
            record.stand_ins.append("export: left out, for the other processes' shards were never written")
            return
        emit("4 of 4: export")
        with record.phase("export"), FakeDevice(ledger):
            export_run(folder / "run", folder / "export", trust_code=True)
