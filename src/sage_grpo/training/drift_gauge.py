"""The drift gauge measures how a run changes its videos in ways that the reward does not show. It works for any model.

Everything is measured on the policy's own rollouts. The first measurement is made before any update, so it describes
the base model. Later measurements are compared with the first one.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from sage_grpo.config import GaugeConfig
from sage_grpo.core.callback import Callback, Metrics, Rollouts
from sage_grpo.core.comm import Comm, SingleProcess
from sage_grpo.core.loop import Loop
from sage_grpo.core.outside import INITIAL
from sage_grpo.core.protocols import Videos
from sage_grpo.core.renoise import renoise, with_old_velocities
from sage_grpo.core.rollout import Key, Trajectory
from sage_grpo.math.gaussian import Reduction, kl
from sage_grpo.runs.alarms import crossed

NOISE_LEVELS = (0.3, 0.6, 0.9)
FULL_SCALE = 0.99  # of a sound's samples
RATIOS, DIFFERENCES = ("base_error", "diversity", "motion", "loudness"), ("saturation", "exposure", "clipping")


def initial_kl(policy: Trajectory, base: Trajectory, reduction: Reduction) -> float:
    """Return the mean KL(policy‖initial policy) over all videos and points of a batch.

    Args:
        policy: Trajectories with the velocities of the policy at each point.
        base: The same points with the velocities of the initial policy.
        reduction: Mean or sum over the elements of a latent.
    """
    pairs = [(point, base.points[step]) for step, point in policy.points.items()]
    return sum(kl(a.stored, b.stored, a.k, reduction).mean().item() for a, b in pairs) / len(pairs)


def noised_for_gauge(loop: Loop, trajectory: Trajectory) -> Trajectory:
    """Return the videos of `trajectory` with fresh noise added at the gauge's noise levels: 0.3, 0.6 and 0.9.

    The noise follows from the run's seed and the place of a video in the batch, so it is the same at every measurement.
    """
    keys: list[Key] = [("gauge", loop.config.seed, i) for i in range(len(trajectory.x0))]
    return renoise(loop.model, trajectory, NOISE_LEVELS, keys)


def base_error(base: Trajectory) -> float:
    """Return the mean squared flow-matching error of the frozen base model on the policy's videos.

    The error is large if these videos are unlike those of the base model. `base` has the videos with noise, and the
    velocity of the base model at each point.
    """
    points = base.points.values()
    return sum((p.stored.float() - (p.noise - base.x0)).square().mean().item() for p in points) / len(points)


def diversity(x0: Tensor, group: int) -> float:
    """Return the mean Euclidean distance between two rollouts of the same prompt, divided by √(elements of a latent).

    Args:
        x0: Latents (B, …), ordered by prompt.
        group: Rollouts per prompt. If B is not a multiple of this number, all latents count as one group.
    """
    flat = x0.flatten(1)
    groups = flat.view(-1, group, flat.shape[1]) if len(x0) % group == 0 else flat[None]
    distances = torch.cdist(groups, groups)
    pairs = distances.shape[1] * (distances.shape[1] - 1)
    mean: float = (distances.sum((1, 2)) / pairs).mean().item()
    return mean / math.sqrt(flat.shape[1])


def look(batches: Sequence[Tensor], comm: Comm | None = None) -> Metrics:
    """Return saturation, exposure and motion of videos, each as one number from 0 to 1.

    Saturation is the share of pixel values that are almost black or white. Exposure is the mean brightness. Motion is
    the mean absolute change of a value from one frame to the next.

    Each batch is (B, F, H, W, 3), uint8. Frames stay on their device and are measured one at a time. Sums are added up
    over the processes that share a video, because each of these decoded other videos, or none.
    """
    ends, light, change = list[Tensor](), list[Tensor](), list[Tensor]()
    for videos in batches:
        before = None
        for frame in videos.unbind(1):
            ends.append((frame + 3 <= 5).count_nonzero())  # uint8 wraps: these are 253 to 255 and 0 to 2
            now = frame.float()
            light.append(now.sum())
            if before is not None:
                change.append(before.sub_(now).abs_().sum())
            before = now
    sizes = [float(sum(videos[:, first:].numel() for videos in batches)) for first in (0, 1)]
    mine = torch.tensor([_total(ends), _total(light), _total(change), *sizes], dtype=torch.float64)
    saturated, lit, changed, values, changes = (comm or SingleProcess()).sum_sp(mine).tolist()
    return {
        "saturation": saturated / values,
        "exposure": lit / values / 255,
        "motion": changed / max(changes, 1) / 255,
    }


def listen(batches: Sequence[Videos], comm: Comm | None = None) -> Metrics:
    """Return the loudness of the videos' sound (root mean square), and the share of its samples at full scale.

    Both numbers are from 0 to 1. The result is empty if the videos have no sound. Sums are added up over processes as
    in `look`.
    """
    clipped, power, count = 0.0, 0.0, 0
    for sound in (batch.sound for batch in batches if batch.sound is not None):
        clipped += (sound.abs() >= FULL_SCALE).count_nonzero().item()
        power += sound.double().square().sum().item()
        count += sound.numel()
    mine = torch.tensor([clipped, power, float(count)], dtype=torch.float64)
    clipped, power, samples = (comm or SingleProcess()).sum_sp(mine).tolist()
    return {"clipping": clipped / samples, "loudness": math.sqrt(power / samples)} if samples else {}


def _total(parts: Sequence[Tensor]) -> float:
    return torch.stack(list(parts)).cpu().double().sum().item() if parts else 0.0


def window_place(loop: Loop) -> int | None:
    """Return the first step of this iteration's window, or None if every prompt has a window of its own.

    The gauge only compares rollouts of the same window, because the window changes what it measures. A late window
    leaves rollouts little room to differ, and a short tail leaves noise in their videos.
    """
    return None if loop.config.sampling.window.per == "prompt" else loop.windows.starts(loop.iteration)[0]


class DriftGauge(Callback):
    def __init__(self, config: GaugeConfig) -> None:
        self.config = config
        self.base: Metrics = {}
        self.place: int | None = None  # of the window in the first measurement
        self.due = False
        self.latest: Metrics = {}
        self.alarms: list[str] = []

    def on_start(self, loop: Loop) -> None:
        if self.config.every and INITIAL not in loop.bank:
            loop.bank.save(INITIAL)

    def on_rollout(self, loop: Loop, rollouts: Rollouts, scores: Tensor, valid: Tensor) -> None:
        self.latest = {}
        self.due |= self.config.every > 0 and loop.iteration % self.config.every == 0
        place = window_place(loop)
        if self.due and (not self.base or self.place in (None, place)):
            self.due, self.place = False, place
            first = rollouts.trajectories[0]
            x0, group = torch.cat([t.x0 for t in rollouts.trajectories]), loop.config.policy.num_generations
            if len(x0) % group:  # a group spans processes
                x0 = loop.comm.gather(x0)
            raw = {"diversity": diversity(x0, group)} | look([batch.frames for batch in rollouts.videos], loop.comm)
            raw |= listen(rollouts.videos, loop.comm)
            videos = noised_for_gauge(loop, first)
            if not first.points:  # a rollout by the plain ODE: its policy is evaluated where the initial one is
                first = videos = with_old_velocities(loop.model, videos)
            with loop.bank.using(INITIAL):
                base = with_old_velocities(loop.model, videos)
                base_there = base if first is videos else with_old_velocities(loop.model, first)
            raw["base_error"] = base_error(base)
            raw["kl_initial"] = initial_kl(first, base_there, loop.config.policy.reduction)
            mean = loop.comm.mean(torch.tensor(list(raw.values()), dtype=torch.float64)).tolist()
            raw = dict(zip(raw, mean, strict=True))  # all processes see, and decide, the same
            self.base = self.base or raw
            self.latest = self.relative(raw) | {"kl_initial": raw["kl_initial"]}

    def relative(self, raw: Metrics) -> Metrics:
        """Return each measure relative to the first measurement.

        `base_error`, `diversity`, `motion` and `loudness` are returned as ratios, `saturation`, `exposure` and
        `clipping` as differences.
        """
        ratios = {k: raw[k] / max(self.base[k], 1e-12) for k in RATIOS if k in raw}
        return ratios | {k: raw[k] - self.base[k] for k in DIFFERENCES if k in raw}

    def check(self, now: Metrics) -> list[str]:
        """Return one sentence per limit of the recipe that the measures in `now` cross."""
        return [alarm.text for alarm in crossed(self.config, now)]

    def on_iteration(self, loop: Loop, metrics: Metrics) -> None:
        if not self.latest:
            return
        metrics |= {f"drift/{name}": value for name, value in self.latest.items()}
        alarms = self.check(self.latest)
        metrics["drift/alarms"] = float(len(alarms))
        self.alarms += [f"iteration {loop.iteration}: {text}" for text in alarms]
        if alarms and self.config.action == "stop":
            loop.stop(f"drift gauge: {alarms[0]}")

    def state_dict(self) -> dict[str, Any]:
        return {"base": self.base, "alarms": self.alarms, "place": self.place, "due": self.due}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.base, self.alarms = dict(state["base"]), list(state["alarms"])
        # Older checkpoints have none: the next measurement's window becomes the one to compare with.
        self.place, self.due = state.get("place"), state.get("due", False)
