"""Callbacks of a run: averaged weights, logs, sample videos and checkpoints."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor

from sage_grpo.config import RecipeConfig
from sage_grpo.core.callback import Callback, Metrics, Rollouts
from sage_grpo.core.loop import Loop
from sage_grpo.core.reward import Reward
from sage_grpo.core.sampler import gather_videos, generate, rank_indices
from sage_grpo.core.update import UpdateResult
from sage_grpo.files import write_json
from sage_grpo.runs.folder import RunFolder
from sage_grpo.runs.tracker import Tracker
from sage_grpo.videos import contact_sheet, sound_of, write_mp4

EMA = "ema"
PER_STEP = {"ratio": "ratio", "clip_frac": "clip_frac", "gradient": "gradient_raw", "kl_penalty": "kl_penalty"}


def averaged(loop: Loop) -> AbstractContextManager[object]:
    """Return a context manager. Inside it the model has the run's averaged weights, or the current weights if the run
    keeps no average."""
    return loop.bank.using(EMA) if EMA in loop.bank else nullcontext()


class WeightAverage(Callback):
    def __init__(self, decay: float) -> None:
        self.decay = decay

    def on_start(self, loop: Loop) -> None:
        if EMA not in loop.bank:
            loop.bank.save(EMA)

    def on_update(self, loop: Loop, result: UpdateResult) -> None:
        if result.stepped:
            loop.bank.save(EMA, decay=self.decay)


class Clock(Callback):
    """A callback that stores when the current iteration began, for the log.

    It must be the last callback: an iteration begins when all others are done with the previous one.
    """

    def __init__(self) -> None:
        self.began, self.wait_seconds = time.perf_counter(), 0.0

    def on_start(self, loop: Loop) -> None:
        self.began, self.wait_seconds = time.perf_counter(), loop.reward.wait_seconds

    def on_iteration(self, loop: Loop, metrics: Metrics) -> None:
        self.on_start(loop)


PHASES = ("rollout", "score", "update")  # of an iteration; the log has the seconds of each


class Log(Callback):
    """A callback that writes metrics, per-timestep series and seconds per phase to all trackers."""

    def __init__(self, trackers: Sequence[Tracker], names: Sequence[str], clock: Clock | None = None) -> None:
        self.trackers, self.names, self.clock = trackers, names, clock or Clock()
        self.seconds: Metrics = {}
        self.series: dict[str, list[float]] = {}
        self.scores: Metrics = {}
        self.first: Metrics = {}
        self.last: Metrics = {}

    def on_rollout(self, loop: Loop, rollouts: Rollouts, scores: Tensor, valid: Tensor) -> None:
        self.series = {}
        elapsed, score = time.perf_counter() - self.clock.began, loop.reward.wait_seconds - self.clock.wait_seconds
        # what the gauge does counts to the rollout
        self.seconds = {"seconds/rollout": elapsed - score, "seconds/score": score}
        columns = ((name, scores[valid[:, i], i]) for i, name in enumerate(self.names))
        self.scores = {f"reward/{name}": values.mean().item() for name, values in columns if len(values)}

    def on_update(self, loop: Loop, result: UpdateResult) -> None:
        for i, step in enumerate(result.steps):
            for column, name in PER_STEP.items():
                self.series.setdefault(f"steps/{name}/{step:03d}", []).append(result.per_step[column][i])
            weight = loop.equalizer[step].item()
            balanced = weight * result.per_step["gradient"][i]
            self.series.setdefault(f"steps/gradient_equalized/{step:03d}", []).append(balanced)
            spread = math.sqrt(result.per_step["log_ratio_sq"][i])
            self.series.setdefault(f"steps/log_ratio_rms/{step:03d}", []).append(spread)
        before = sum(self.seconds.get(f"seconds/{phase}", 0.0) for phase in ("rollout", "score"))
        self.seconds["seconds/update"] = time.perf_counter() - self.clock.began - before

    def on_iteration(self, loop: Loop, metrics: Metrics) -> None:
        metrics |= self.scores
        self.first, self.last = self.first or dict(metrics), dict(metrics)
        series = {name: sum(values) / len(values) for name, values in sorted(self.series.items())}
        for tracker in self.trackers:
            tracker.log(loop.iteration, metrics | self.seconds | series)


class Samples(Callback):
    """A callback that makes sample videos every few iterations, always from the same prompts and seeds.

    So differences between two iterations come from the policy alone.
    """

    def __init__(
        self,
        folder: RunFolder,
        config: RecipeConfig,
        trackers: Sequence[Tracker],
        *,
        write: bool = True,
        monitors: Reward | None = None,
    ) -> None:
        steps = config.run.sample_steps or config.sampling.steps
        sampling = config.sampling.model_copy(update={"steps": steps})
        self.config = config.model_copy(update={"sampling": sampling})
        self.folder, self.trackers, self.writes, self.monitors = folder, trackers, write, monitors

    def on_start(self, loop: Loop) -> None:
        if loop.iteration == 0:
            self.write(loop)

    def on_iteration(self, loop: Loop, metrics: Metrics) -> None:
        if loop.iteration % self.config.run.sample_every == 0:
            metrics |= self.write(loop)

    def write(self, loop: Loop) -> Metrics:
        """Make and write the sample videos, and return the mean of each monitor score over them, as `held_out/NAME`.

        The result is empty without monitors, and on all processes except the one that writes files.
        """
        run = self.config.run
        prompts = [prompt for prompt in loop.prompts(0, run.samples) for _ in range(run.samples_each)]
        mine = rank_indices(len(prompts), loop.comm)
        with averaged(loop), loop.model.resized(**run.sample_size):
            own = loop.model.render(generate(loop.model, [prompts[i] for i in mine], self.config, mine))
        made = gather_videos(own, len(prompts), loop.comm, keep=self.writes)
        if made is None:
            return {}
        folder = self.folder.sample(loop.iteration)
        folder.path.mkdir(parents=True, exist_ok=True)
        entries = [{"prompt": prompt.text, "seed": i} for i, prompt in enumerate(prompts)]
        write_json(folder.prompts, entries)
        for i, video in enumerate(made.frames):
            write_mp4(folder.video(i), video, made.frame_rate, sound=sound_of(made.sound, made.sample_rate, i))
            for tracker in self.trackers:
                tracker.video(loop.iteration, f"samples/{i:02d}", folder.video(i))
        rows = [(prompt.text, video) for prompt, video in zip(prompts, made.frames, strict=True)]
        contact_sheet(folder.sheet, rows, title=f"iteration {loop.iteration}, fixed seeds")
        if self.monitors is None:
            return {}
        scores = self.monitors.submit(made, prompts)()
        columns = dict(zip(self.monitors.names, zip(scores.values.T, scores.valid.T, strict=True), strict=True))
        rated = {name: [v.item() if ok else None for v, ok in zip(*c, strict=True)] for name, c in columns.items()}
        write_json(folder.scores, rated)
        return {f"held_out/{name}": values[ok].mean().item() for name, (values, ok) in columns.items() if ok.any()}


class Save(Callback):
    """A callback that saves a checkpoint every few iterations, and when the run ends or is interrupted."""

    def __init__(
        self, save: Callable[[int, Mapping[str, Any]], object], config: RecipeConfig, parts: Mapping[str, Any]
    ) -> None:
        self.save, self.config, self.parts = save, config, parts
        self.saved_at: int | None = None

    def on_start(self, loop: Loop) -> None:
        self.saved_at = loop.iteration  # the checkpoint to resume from is there: writing it again would first remove it

    def on_iteration(self, loop: Loop, metrics: Metrics) -> None:
        run = self.config.run
        if any(loop.iteration % every == 0 for every in (run.save_every, run.keep_every) if every):
            self.write(loop)

    def on_end(self, loop: Loop) -> None:
        if self.saved_at != loop.iteration and loop.iteration:
            self.write(loop)

    def write(self, loop: Loop) -> None:
        state = {
            "loop": loop.state_dict(),
            "parts": {name: part.state_dict() for name, part in self.parts.items()},
            "prompts": loop.prompts.fingerprint,
        }
        self.save(loop.iteration, state)
        self.saved_at = loop.iteration
