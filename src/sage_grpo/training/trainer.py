"""The trainer, which runs a recipe: `Trainer(model=…, rewards=[…], config=…, prompts=…).train()`."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from rich.console import Console

from sage_grpo.config import ConfigError, RecipeConfig, load_recipe
from sage_grpo.core.callback import Callback
from sage_grpo.core.loop import Loop
from sage_grpo.core.outside import INITIAL
from sage_grpo.core.passes import outside_points
from sage_grpo.core.reward import Reward
from sage_grpo.core.video_model import VideoModel
from sage_grpo.data.prompts import Prompts
from sage_grpo.distributed.checkpoint import Saver, load_newest
from sage_grpo.distributed.device import HOST, DeviceRandom, choose_device
from sage_grpo.distributed.gpu_check import Speed, check_gpus
from sage_grpo.distributed.processes import join
from sage_grpo.distributed.shard import base_weights
from sage_grpo.distributed.watchdog import Watchdog
from sage_grpo.rewards.function import CompositeReward
from sage_grpo.runs.folder import RunFolder
from sage_grpo.runs.redact import clean_settings, clean_text
from sage_grpo.runs.tracker import Tracker
from sage_grpo.training import build
from sage_grpo.training.attention_watch import watch_first_pass
from sage_grpo.training.bookkeeping import alone, write_end, write_start
from sage_grpo.training.callbacks import Clock, Log, Samples, Save, WeightAverage
from sage_grpo.training.checks import check_groups, check_noise_levels, check_places, check_samples
from sage_grpo.training.drift_gauge import DriftGauge
from sage_grpo.training.encode import encode_ahead
from sage_grpo.training.progress import ProgressCallback
from sage_grpo.training.result import Result, summarize
from sage_grpo.training.stop import CollectiveStop, stop_on_signal
from sage_grpo.training.throughput import Throughput, Work, past_of
from sage_grpo.training.trackers import make_trackers
from sage_grpo.weights.optimizers import build_optimizer
from sage_grpo.weights.prepare import make_bank, prepare


class Trainer:
    """A training run: `Trainer(…).train()`. Model, rewards and prompts that are not given are those of the recipe.

    Args:
        model: A `VideoModel`.
        rewards: `Reward`s, or plain functions `f(videos, prompts)` that return one number per video.
        config: A recipe: a `RecipeConfig`, a mapping of settings, a path to a YAML file, or a shipped recipe's name.
        prompts: A path, list of texts, `datasets` object or function.
        callbacks: Called at every event of the run, in this order.
        console: Where progress and summary are printed; by default standard output.

    Examples:
        >>> from rich.console import Console
        >>> from sage_grpo import Trainer, load_recipe
        >>> def brightness(videos, prompts):  # uint8 (N, F, H, W, 3)
        ...     return videos.float().mean((1, 2, 3, 4)) / 255
        >>> small = ["policy.prompts_per_iteration=1", "policy.num_generations=4", "policy.batch_size=4"]
        >>> recipe = load_recipe("lab", [*small, "sampling.steps=4", "run.iterations=1", "run.out=runs/bright"])
        >>> result = Trainer(rewards=[brightness], config=recipe, console=Console(quiet=True)).train()
        >>> result.iterations
        1
    """

    loop_type: ClassVar[type[Loop]] = Loop
    work: Callable[[], Work | None] | None = None
    """Function that returns the planned work of an iteration, or None while the plan is not ready.

    The log needs this plan for the MFU. If `work` is None, the log has no MFU."""

    def __init__(
        self,
        model: VideoModel | None = None,
        rewards: Sequence[Reward | Callable[..., Any]] | None = None,
        config: RecipeConfig | Mapping[str, Any] | str | Path | None = None,
        prompts: Any = None,
        *,
        callbacks: Sequence[Callback] = (),
        console: Console | None = None,
    ) -> None:
        recipe = config if isinstance(config, RecipeConfig) else load_recipe(config or {})
        build.check_names(recipe, model=model is None, rewards=rewards is None)
        check_places(recipe)
        check_noise_levels(recipe)
        layout = recipe.parallel
        # The watchdog must bark first: a collective that times out ends its process without a word on the others.
        minutes = max(30.0, 2 * recipe.run.hang_minutes)
        self.processes = join(
            layout.processes, layout.sequence, layout.replicate, recipe.tuning.device, ring=layout.ring, minutes=minutes
        )
        self.main = self.processes is None or self.processes.main  # writes files and talks to people
        self._speeds = list[Speed]()
        if recipe.run.check_gpus:  # while devices are empty
            device = self.processes.device if self.processes else choose_device(recipe.tuning.device)
            self._speeds = check_gpus(self.processes, device, console or Console(), report=self.main)
        self.reward, recipe = self._rewards(rewards, recipe)
        self.config = recipe
        self.monitors = build.build_monitors(recipe) if self.main else None  # who writes the samples
        self.prompts = build.build_prompts(recipe, prompts)
        self.model = self._model(model)
        self.callbacks = list(callbacks)
        self.console = console if console and self.main else Console(quiet=not self.main)
        self.folder = Path(recipe.run.out)
        self.files = RunFolder(self.folder)
        torch.manual_seed(recipe.seed)
        optimizer = build_optimizer(self.model.module, recipe.optimizer)
        self._parameters = {name for name, _ in self.model.module.named_parameters()}
        self.gauge = DriftGauge(recipe.gauge)
        self.random = DeviceRandom(next(self.model.module.parameters()).device)
        # Read from its checkpoint when the gauge asks, not held; a model that was handed over may have other weights.
        # A trust region outside the window asks at every update: then a copy is held.
        read = model is None and recipe.gauge.every and not outside_points(recipe)
        base = base_weights(self.model) if read else None
        lazy_copies = {INITIAL: base} if base else {}
        bank = make_bank(self.model.module, HOST if recipe.tuning.offload_copies else None, lazy_copies)
        try:
            self.loop = self.loop_type(
                self.model, self.reward, self.prompts, recipe, optimizer, bank=bank, comm=self.processes
            )
        except ValueError as error:  # a layout or kernel that the recipe should not have asked for
            raise ConfigError(str(error)) from error
        check_groups(recipe, self.reward, self.loop.comm)
        check_samples(recipe, self.model)

    def _rewards(
        self, rewards: Sequence[Reward | Callable[..., Any]] | None, recipe: RecipeConfig
    ) -> tuple[Reward, RecipeConfig]:
        """Return all rewards as one reward, and the recipe with the weight of each score filled in."""
        if rewards is not None:
            return CompositeReward([build.as_reward(reward) for reward in rewards]), recipe
        reward, weights = build.build_rewards(recipe)
        if recipe.policy.reward_weights is None:
            policy = recipe.policy.model_copy(update={"reward_weights": weights})
            recipe = recipe.model_copy(update={"policy": policy})
        return reward, recipe

    def _model(self, model: VideoModel | None) -> VideoModel:
        if model is None:
            # what a function will ask for nobody knows: its prompts are encoded as they come
            ahead = self.config.tuning.encode_ahead and isinstance(self.prompts, Prompts)
            return build.build_model(self.config, self.processes, without_encoders=ahead)
        build.as_model(model)
        prepare(model, self.config.tuning, self.config.seed)  # a model of your own is trained as the recipe says, too
        if self.processes:
            build.share(model, self.config, self.processes)
        return model

    def train(self) -> Result:
        """Train from the newest checkpoint of the run folder, or from the start if there is none; return the outcome.

        Ctrl-C finishes the iteration, saves a checkpoint and ends the run.
        """
        watchdog = Watchdog(self.loop, self.folder, self.config.run.hang_minutes, self.processes)
        with alone(self.files, self.processes), watchdog.watching():
            return self._train(watchdog)

    def _train(self, watchdog: Watchdog) -> Result:
        config, loop, started = self.config, self.loop, time.perf_counter()
        if isinstance(self.prompts, Prompts):
            encode_ahead(self.model, self.prompts, config, self.processes, watchdog.mark, self.console)
        resumed = self._resume()
        trackers = list[Tracker]()
        if self.main:
            write_start(self.files, config, self._speeds, resumed=resumed)
            cleaned = clean_settings(config.model_dump(mode="json"))
            # resume_at: a run killed before its first checkpoint starts over, and so do its curves
            trackers = make_trackers(
                config.run.trackers, self.folder, config=cleaned, name=self.folder.name, resume_at=loop.iteration + 1
            )
        log = Log(trackers, self.reward.names, clock := Clock())
        parts: list[Callback] = [watchdog]
        parts += [WeightAverage(config.optimizer.ema)] if config.optimizer.ema else []
        if config.run.sample_every:
            # before the log: it adds what the monitors say
            parts.append(Samples(self.files, config, trackers, write=self.main, monitors=self.monitors))
        past = past_of(self.files) if self.main else None
        speed = Throughput(log, self.processes, past, self.work if self.main else None)
        parts += [self.gauge, speed, log, *self.callbacks]
        parts.append(ProgressCallback(config.run.iterations, config.rollouts, console=self.console))
        parts.append(stop := CollectiveStop())
        saver = Saver(self.files.checkpoints(config), config.run.keep, self.processes, config.run.keep_every)
        saved = {"gauge": self.gauge, "random": self.random}
        parts += [Save(saver.save, config, saved), clock]  # after the others: it saves what they did
        loop.callbacks = parts
        if config.tuning.compile is None:  # compiled blocks would be compiled for the watch
            watch_first_pass(self.model.module, lambda told: self.console.print(told, highlight=False))
        try:
            with stop_on_signal(stop):
                loop.run(config.run.iterations)
                saver.wait()
        except Exception as error:
            watchdog.fail(error)  # first: trackers may take their time to close
            if self.main:
                write_end(self.files, loop, f"{type(error).__name__}: {clean_text(str(error))[:400]}")
            raise
        finally:
            for tracker in trackers:
                tracker.close()
        seconds = time.perf_counter() - started
        if self.main:
            write_end(self.files, loop)
        result = Result(self.folder, loop.iteration, log.first, log.last, seconds, loop.stop_reason, self.gauge.alarms)
        summarize(result, config, self.console)
        return result

    def _sharded(self, path: str) -> bool:
        """Return whether the tensor at `path` in the saved state is sharded: weights, their copies and moments are."""
        _, _, section, *rest = path.split("/")
        return section in ("bank", "optimizer") or (section == "model" and "/".join(rest) in self._parameters)

    def _resume(self) -> bool:
        if self.config.run.resume == "never":
            held = self.files.log.exists()
            if self.processes:  # asked together: the first process writes the log as soon as it begins
                held = any(self.processes.everybody(held))
            if held:
                raise ConfigError(
                    f"{self.folder} holds a run already; use resume: auto to continue, or another run.out"
                )
            return False
        newest = load_newest(self.files.checkpoints(self.config), self.processes, self._sharded)
        if newest is None:
            return False
        name, state, problems = newest
        for problem in problems:
            self.console.print(f"[yellow]passed over a damaged checkpoint:[/] {problem}")
        if state["prompts"] != self.prompts.fingerprint:
            raise ConfigError(
                f"the prompts are not those of {name}; restore them, or choose another run.out to start again"
            )
        self.loop.load_state_dict(state["loop"])
        if outside_points(self.config) and INITIAL not in self.loop.bank:
            raise ConfigError(
                f"{name} was made without kl.outside_weight and does not hold the initial policy, which this penalty "
                "compares with; use kl.outside_weight=0, or another run.out to start again"
            )
        self.gauge.load_state_dict(state["parts"]["gauge"])
        self.random.load_state_dict(state["parts"].get("random", {}))  # older checkpoints have none
        self.console.print(f"resumed from {name} at iteration {self.loop.iteration}", highlight=False)
        return True
