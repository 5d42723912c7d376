"""The whole algorithm: rollout → reward → advantage → update → anchor, told to callbacks as it goes."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from sage_grpo.config import AlgorithmConfig
from sage_grpo.core.anchors import ANCHOR, OLD, anchor_is_asked, anchor_is_due
from sage_grpo.core.checks import check_direction, check_replay, check_training
from sage_grpo.core.copy_bank import CopyBank
from sage_grpo.core.objectives import asks_old, chosen_objective
from sage_grpo.core.points import noise_levels, noised, remembered, unguided
from sage_grpo.core.protocols import (
    Comm,
    Prompt,
    PromptSource,
    Reward,
    SingleProcess,
    VideoModel,
    Videos,
    WeightsBank,
    networks,
)
from sage_grpo.core.rollout import Key, Prefixes, Trajectory, sample, velocity_at
from sage_grpo.core.scores import Scores
from sage_grpo.core.selection import best_and_worst, has_signal, packed
from sage_grpo.core.update import Batch, UpdateResult, anchored_places, trained_steps, update
from sage_grpo.core.windows import Windows, my_samples
from sage_grpo.errors import UserError
from sage_grpo.math.advantage import dimension_advantages, group_advantages, weighted_reward
from sage_grpo.math.controller import KLRule, KLWeight, initial_weight, next_weight
from sage_grpo.math.equalizer import equalizer

Metrics = dict[str, float]


class RewardFailure(UserError, RuntimeError):
    """More rewards failed than the configuration allows."""


@dataclass
class Rollouts:
    """This rank's share of an iteration."""

    prompts: list[Prompt]
    trajectories: list[Trajectory] = field(default_factory=list)
    videos: list[Videos] = field(default_factory=list)
    """Batches that this process decoded: those that share a video deal them out."""
    scores: list[tuple[slice, Callable[[], Scores]]] = field(default_factory=list)
    """Rows of those videos among the prompts, and what to call for their scores."""
    dealt: int = 0
    """Videos whose decoding has begun, here or on another process."""


@dataclass(frozen=True)
class Lesson:
    """What of an iteration is trained on, by this rank."""

    parts: list[tuple[Trajectory, Tensor, Tensor]]
    """Batches, their advantages and their weights."""
    samples: int
    """Videos of weight 1 on all ranks."""


class Callback:
    """Logging, gauges and saving hang on here; the core knows none of them. Override the events that you need."""

    def on_start(self, loop: "Loop") -> None:
        """Before the first iteration."""

    def on_scores(self, loop: "Loop", scores: Scores) -> None:
        """One batch of this rank is scored."""

    def on_rollout(self, loop: "Loop", rollouts: Rollouts, scores: Tensor, valid: Tensor) -> None:
        """All videos are made and scored; `scores` and `valid` are those of all ranks."""

    def on_update(self, loop: "Loop", result: UpdateResult) -> None:
        """The optimizer has stepped, or refused to."""

    def on_iteration(self, loop: "Loop", metrics: Metrics) -> None:
        """An iteration is done. What is added to `metrics` is logged, by those that come later."""

    def on_end(self, loop: "Loop") -> None:
        """All iterations are done, or someone called `stop`; not after an error."""


class Loop:
    """The iterations of a run, with everything that they change."""

    def __init__(
        self,
        model: VideoModel,
        reward: Reward,
        prompts: PromptSource,
        config: AlgorithmConfig,
        optimizer: torch.optim.Optimizer,
        *,
        bank: WeightsBank | None = None,
        comm: Comm | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self.model, self.reward, self.prompts, self.config = model, reward, prompts, config
        self.optimizer, self.callbacks = optimizer, list(callbacks)
        self.bank, self.comm = bank or CopyBank(model.module), comm or SingleProcess()
        self.rule = KLRule(**{name: getattr(config.kl, name) for name in KLRule.__dataclass_fields__})
        self.kl_weight = initial_weight(self.rule)
        self.iteration, self.updates, self._checked = 0, 0, False
        self.stop_reason: str | None = None
        config.check_layout(self.comm.world)
        self.windows = Windows(config, self.comm.world, len(networks(model.module)))
        self.table = self.windows.full
        self.objective = chosen_objective(config, self.comm.world)
        self.equalizer = self._point_weights()

    def _point_weights(self) -> Tensor:
        policy, table = self.config.policy, self.table
        if policy.points:  # an objective on renoised videos weighs noise levels itself
            return torch.ones(policy.points, dtype=torch.float64)
        # From the full table, not the window: a window that moves must not change a step's weight.
        own = self.objective.step_weights(table)
        balanced = equalizer(table) if own is None else own
        return balanced if policy.equalizer else table.stochastic.double()

    def rollout(self) -> Rollouts:
        """This rank's part of P prompts × G rollouts. Noise is keyed by the global sample, never by rank."""
        config, iteration, size = self.config, self.iteration, self.config.policy.batch_size
        group = config.policy.num_generations
        prompts = self.prompts(iteration * config.policy.prompts_per_iteration, config.policy.prompts_per_iteration)
        mine = my_samples(config.rollouts, self.comm.world, self.comm.rank)
        out = Rollouts([prompts[i // group] for i in mine])
        if self.objective.averages and OLD not in self.bank:
            self.bank.save(OLD)
        prefixes, tables = Prefixes() if self.windows.share_prefixes else None, self.windows.tables(iteration)
        with self._old():  # once: putting a copy in place may move all weights
            for first in mine[::size]:
                batch = range(first, first + size)
                samples: list[Key] = [(config.seed, iteration, i) for i in batch]
                shared: list[Key] = [(config.seed, iteration, i // group * group) for i in batch]
                initial = shared if config.sampling.shared_initial_noise else samples
                asked = [prompts[i // group] for i in batch]
                trajectory = sample(self.model, asked, tables[first // group], initial, samples, prefixes)
                out.trajectories.append(trajectory)
                self._decode(out)
            self._keep_up(out.trajectories[-1])
        return out

    def _keep_up(self, trajectory: Trajectory) -> None:
        """Ask the network as often as the rank that asks most: weights that are shared out are gathered by all."""
        one = {name: value[:1] for name, value in trajectory.condition.items()}
        with torch.no_grad():
            for _ in range(self.windows.idle(self.iteration, self.comm.rank)):
                velocity_at(self.model, trajectory.x0[:1], 1.0, one)

    def _decode(self, rollouts: Rollouts) -> None:
        """Decode what can be scored, and hand it over: a fleet works on it while the next videos are made.

        Those that share a video have the same latents. They wait until each of them has a part to decode.
        """
        batch, sharers = self.config.policy.batch_size, self.comm.sharers
        unit = self.config.policy.num_generations if self.reward.groupwise else 1
        made, whole = len(rollouts.trajectories) * batch, len(rollouts.prompts)
        fresh = made - rollouts.dealt
        if fresh % (unit * sharers) and made < whole:
            return
        share = math.ceil(fresh / unit / sharers) * unit
        skipped = share * self.comm.place
        first = rollouts.dealt + skipped
        latents = torch.cat([trajectory.x0 for trajectory in rollouts.trajectories[rollouts.dealt // batch :]])
        own = latents[skipped : skipped + share]
        rollouts.dealt = made
        if not len(own):
            return
        videos = Videos.joined([self.model.render(x0) for x0 in torch.split(own, batch)])
        rollouts.videos.extend(videos.split(batch))
        size = unit if self.reward.groupwise else batch
        for i, scored in enumerate(videos.split(size)):
            part = slice(first + i * size, first + i * size + len(scored))
            rollouts.scores.append((part, self.reward.begin(scored, rollouts.prompts[part])))

    def score(self, rollouts: Rollouts) -> tuple[Tensor, Tensor]:
        """Scores of all ranks (N, R) and which of them are valid."""
        names = self.reward.names
        values = torch.zeros(len(rollouts.prompts), len(names), dtype=torch.float64)
        valid = torch.zeros_like(values)
        for rows, ask in rollouts.scores:
            part, wanted = ask(), values[rows].shape
            if part.values.shape != wanted:
                raise ValueError(
                    f"reward {list(names)} returned {tuple(part.values.shape)} values for "
                    f"{wanted[0]} videos; one row a video and one column a name are needed"
                )
            held = part.on_host()
            values[rows], valid[rows] = held.values, held.valid.double()
            self._tell("on_scores", part)
        return self.comm.gather(self.comm.merged(values)), self.comm.gather(self.comm.merged(valid)).bool()

    def iterate(self) -> Metrics:
        """One rollout and all its updates."""
        policy = self.config.policy
        group, limit = policy.num_generations, policy.advantage_limit
        rollouts = self.rollout()
        checked: Metrics = {}
        if not self._checked:
            off = self._check(rollouts.trajectories[0])
            self._checked = True
            checked = {} if self.iteration else {"replay_deviation": off}  # a resumed run logs as an unbroken one
        scores, valid = self.score(rollouts)
        self._tell("on_rollout", rollouts, scores, valid)
        paths = rollouts.trajectories
        del rollouts  # the videos are scored and seen: training needs their room
        reward, ok = (x.view(-1, group) for x in weighted_reward(scores, valid, policy.reward_weights))
        if 1 - ok.double().mean().item() > policy.max_failed_rewards:
            raise RewardFailure(
                f"{(~ok).sum().item()} of {ok.numel()} rewards failed in iteration {self.iteration}; at most "
                f"{policy.max_failed_rewards:.0%} may (policy.max_failed_rewards): look at the scorer first"
            )
        advantage, used = group_advantages(reward, ok, limit=limit)
        if policy.aggregation == "advantages":
            advantage, used = dimension_advantages(scores, valid, policy.reward_weights, group, limit=limit)
        with self._as_trained():
            results = self.learn(self.prepare(paths, advantage, used))
        decay = self.objective.old_decay(self.iteration)
        if decay is not None:
            self.bank.save(OLD, decay)
        metrics = self._metrics(reward[ok], advantage, used, results) | checked
        metrics["reward/failed"] = (~ok).double().mean().item()
        self.iteration += 1
        self._tell("on_iteration", metrics)
        return metrics

    @property
    def makes_its_own(self) -> bool:
        """Whether the policy that is trained has made the videos that it is trained on."""
        return not self.objective.averages

    @property
    def asks_old(self) -> bool:
        """Whether the policy that made the videos is asked again where they are trained on."""
        return asks_old(self.objective, self.config)

    def _old(self) -> AbstractContextManager[None]:
        """The policy that makes the rollouts."""
        return self.bank.using(OLD) if self.objective.averages else nullcontext()

    def _as_trained(self) -> AbstractContextManager[None]:
        """How the network is asked in training: without guidance at points that are not the rollout's own."""
        return unguided(self.model) if self.objective.noised else nullcontext()

    def _noised(self, paths: list[Trajectory]) -> list[Trajectory]:
        """Fresh noise on all videos, keyed by the global sample; the two of a pair have that of their group."""
        seed, iteration, size = self.config.seed, self.iteration, self.config.policy.batch_size
        group = self.config.policy.num_generations if self.objective.paired else 1
        levels = noise_levels(self.config, iteration)
        mine = my_samples(self.config.rollouts, self.comm.world, self.comm.rank)
        batches = (mine[i : i + size] for i in range(0, len(mine), size))
        keys: list[list[Key]] = [[(seed, iteration, i // group * group) for i in batch] for batch in batches]
        return [noised(self.model, path, levels, its) for path, its in zip(paths, keys, strict=False)]

    def _check(self, first: Trajectory) -> float:
        """The gates of the first iteration. Returns how far a replay was off."""
        policy, exact = self.config.policy, self.config.policy.updates_per_rollout > 1
        with self._as_trained():
            if not self.objective.noised:
                off = check_replay(self.model, first, policy.replay_timesteps, self.comm, exact=exact)
            else:
                (first,) = self._noised([first])
                with self._old():
                    first = remembered(self.model, first)
                # An average is the policy itself until that has moved.
                with self._old() if self.updates else nullcontext():
                    exact = exact and not self.objective.averages
                    off = check_replay(self.model, first, policy.replay_timesteps, self.comm, exact=exact)
            check_direction(self.model, first, self.comm)
            check_training(self.model, first, self.objective, self.config, self.comm)
        return off

    def prepare(self, paths: list[Trajectory], advantage: Tensor, used: Tensor) -> Lesson:
        """What of a rollout is trained on. Flat groups that are left out still count in the mean over videos."""
        chosen = best_and_worst(advantage, used, self.config.policy.select)
        skip = self.config.policy.flat_groups == "skip" or self.objective.paired
        weight = chosen & has_signal(advantage)[:, None] if skip else chosen
        if not weight.any():
            return Lesson([], 0)
        paths = self._noised(paths) if self.objective.noised else paths
        x0, first = paths[0].x0, self.comm.rank * len(paths)
        rows = [
            torch.split(x.flatten().to(x0.device), len(x0))[first : first + len(paths)] for x in (advantage, weight)
        ]
        parts = packed(list(zip(paths, *rows, strict=True)), self.comm)
        if self.asks_old:
            with self._old():
                parts = [(remembered(self.model, path), signal, weights) for path, signal, weights in parts]
        return Lesson(parts, int(chosen.sum()))

    def learn(self, lesson: Lesson) -> list[UpdateResult]:
        """All updates of a rollout."""
        parts, results = lesson.parts, list[UpdateResult]()
        if not parts:
            return results
        for epoch in range(self.config.policy.num_iterations):
            orders = [trained_steps(list(path.points), self.config, self.iteration, epoch) for path, _, _ in parts]
            for n, steps in enumerate(zip(*orders, strict=True)):  # of each batch
                anchored: list[int] = []
                if anchor_is_due(self.config.kl, self.updates):
                    self.bank.save(ANCHOR, self.config.kl.decay if self.updates else 0.0)
                if anchor_is_asked(self.config.kl, self.updates):
                    anchored = anchored_places(len(steps[0]), self.config, self.iteration, epoch, n)
                results.append(
                    update(
                        self.model,
                        [Batch(*part, its) for part, its in zip(parts, steps, strict=True)],
                        self.objective,
                        self.equalizer,
                        self.kl_weight.value,
                        self.config,
                        optimizer=self.optimizer,
                        bank=self.bank,
                        comm=self.comm,
                        samples=lesson.samples,
                        anchored=anchored,
                        fresh=self.makes_its_own and not any(r.stepped for r in results),
                    )
                )
                if results[-1].stepped:
                    self.updates += 1
                    self.kl_weight = next_weight(self.kl_weight, results[-1].mean("kl"), self.rule)
                self._tell("on_update", results[-1])
        return results

    def _metrics(self, reward: Tensor, advantage: Tensor, used: Tensor, results: list[UpdateResult]) -> Metrics:
        flat = used.any(1) & ~has_signal(advantage)
        metrics = {
            "zero_std_ratio": flat.double().mean().item(),
            "skipped_iterations": float(not results),
            "kl_weight": self.kl_weight.value,
            "updates": float(self.updates),
            "skipped_updates": float(sum(not r.stepped for r in results)),
        }
        names = {
            "ratio_mean": "ratio",
            "clip_frac": "clip_frac",
            "approx_kl": "kl",
            "kl_moving": "kl_anchor",
            "kl_stepwise": "kl_previous",
            "loss": "loss",
        }
        if len(reward):
            metrics |= {"reward/mean": reward.mean().item(), "reward/std": reward.std(correction=0).item()}
        if results:
            metrics |= {name: sum(r.mean(c) for r in results) / len(results) for name, c in names.items()}
            metrics["grad_norm"] = sum(r.grad_norm for r in results) / len(results)
        return metrics

    def run(self, iterations: int) -> None:
        """Train until `iterations` are done or a callback called `stop`."""
        self._tell("on_start")
        while self.iteration < iterations and self.stop_reason is None:
            self.iterate()
        self._tell("on_end")  # not after an error: a run that failed must not save

    def stop(self, reason: str) -> None:
        """Let this iteration be the last one."""
        self.stop_reason = reason

    def _tell(self, event: str, *details: object) -> None:
        for callback in self.callbacks:
            getattr(callback, event)(self, *details)

    def state_dict(self) -> dict[str, Any]:
        """All that shapes the future. Noise and order follow from seed and position alone."""
        trained = {n: p.detach() for n, p in self.model.module.named_parameters() if p.requires_grad}
        return {
            "model": trained | dict(self.model.module.named_buffers()),
            "optimizer": self.optimizer.state_dict(),
            "bank": self.bank.state_dict(),
            "kl_weight": asdict(self.kl_weight),
            "iteration": self.iteration,
            "updates": self.updates,
            "torch_rng": torch.get_rng_state(),  # for a model or reward that draws its own numbers
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        targets = dict(self.model.module.named_parameters()) | dict(self.model.module.named_buffers())
        with torch.no_grad():
            for name, value in state["model"].items():
                targets[name].copy_(value)
        self.optimizer.load_state_dict(state["optimizer"])
        self.bank.load_state_dict(state["bank"])
        self.kl_weight = KLWeight(**state["kl_weight"] | {"recent": tuple(state["kl_weight"]["recent"])})
        self.iteration, self.updates = state["iteration"], state["updates"]
        torch.set_rng_state(state["torch_rng"])
