"""The algorithm: rollout → reward → advantage → update → anchor, with callbacks along the way."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor

from sage_grpo.config import AlgorithmConfig
from sage_grpo.core.anchor import evaluated_places, is_evaluated, renew
from sage_grpo.core.callback import Callback, Metrics, Rollouts
from sage_grpo.core.checks import check_direction, check_replay, check_training
from sage_grpo.core.collect import check_failed, collect, gather_scores
from sage_grpo.core.comm import Comm, SingleProcess
from sage_grpo.core.copy_bank import CopyBank
from sage_grpo.core.metrics import iteration_metrics
from sage_grpo.core.objectives import OLD, chosen_objective, needs_old_velocity, point_weights
from sage_grpo.core.outside import INITIAL, noised_videos
from sage_grpo.core.protocols import PromptSource, WeightsBank
from sage_grpo.core.renoise import renoise_rollouts, unguided, with_old_velocities
from sage_grpo.core.reward import Reward
from sage_grpo.core.rollout import Trajectory
from sage_grpo.core.selection import TrainBatch, best_and_worst, has_signal, pack
from sage_grpo.core.update import UpdateResult, UpdateStep, trained_steps, update
from sage_grpo.core.video_model import VideoModel, load_trained_state, networks, trained_state
from sage_grpo.core.windows import Windows
from sage_grpo.math.advantage import dimension_advantages, group_advantages, weighted_reward
from sage_grpo.math.controller import KLRule, KLWeight, initial_weight, next_weight


class Loop:
    """The training loop of a run, with all state that its iterations change."""

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
        config.check_layout(self.comm.num_replicas)
        self.windows = Windows(config, self.comm.num_replicas, len(networks(model.module)))
        self.table = self.windows.full
        self.objective = chosen_objective(config, self.comm.num_replicas)
        self.equalizer = point_weights(self.objective, self.table, config)

    def rollout(self) -> Rollouts:
        """Sample this rank's part of an iteration's videos (P prompts × G), decode them and submit them for scoring.

        Noise is keyed by the global index of a sample, never by rank.
        """
        count = self.config.policy.prompts_per_iteration
        prompts = self.prompts(self.iteration * count, count)
        if self.objective.averages and OLD not in self.bank:
            self.bank.save(OLD)
        with self._old():  # once: putting a copy in place may move all weights
            return collect(self.model, self.reward, prompts, self.config, self.windows, self.iteration, comm=self.comm)

    def score(self, rollouts: Rollouts) -> tuple[Tensor, Tensor]:
        """Wait for a rollout's scores, and return those of all ranks (N, R) with a mask (N, R) of the valid ones.

        There is one row per video, in the order of the rollouts, and one column per score; float64, on the host.
        """
        return gather_scores(rollouts, self.reward.names, self.comm, lambda scores: self._call("on_scores", scores))

    def iterate(self) -> Metrics:
        """Run one iteration, which is a rollout and all updates on it, and return the iteration's metrics by name."""
        policy = self.config.policy
        group, limit = policy.num_generations, policy.advantage_limit
        rollouts = self.rollout()
        checked: Metrics = {}
        if not self._checked:
            off = self._check(rollouts.trajectories[0])
            self._checked = True
            checked = {} if self.iteration else {"replay_deviation": off}  # a resumed run logs as an unbroken one
        scores, valid = self.score(rollouts)
        self._call("on_rollout", rollouts, scores, valid)
        paths = rollouts.trajectories
        del rollouts  # the videos are scored and seen: training needs their room
        reward, ok = (x.view(-1, group) for x in weighted_reward(scores, valid, policy.reward_weights))
        check_failed(ok, policy.max_failed_rewards, self.iteration)
        advantage, used = group_advantages(reward, ok, limit=limit)
        if policy.aggregation == "advantages":
            advantage, used = dimension_advantages(scores, valid, policy.reward_weights, group, limit=limit)
        results = list[UpdateResult]()
        with self._as_trained():
            for batches, step in self._updates(*self.prepare(paths, advantage, used)):
                result = update(
                    self.model, batches, step, self.config, optimizer=self.optimizer, bank=self.bank, comm=self.comm
                )
                results.append(result)
                self._after_update(result)
        decay = self.objective.old_decay(self.iteration)
        if decay is not None:
            self.bank.save(OLD, decay)
        metrics = iteration_metrics(reward, ok, advantage, used, results) | checked
        metrics |= {"kl_weight": self.kl_weight.value, "updates": float(self.updates)}
        self.iteration += 1
        self._call("on_iteration", metrics)
        return metrics

    @property
    def on_policy(self) -> bool:
        """Whether the trained policy itself makes the rollouts, and not an average of this policy."""
        return not self.objective.averages

    @property
    def needs_old_velocity(self) -> bool:
        """Whether the old policy needs forward passes of its own before the first update, at renoised points."""
        return needs_old_velocity(self.objective, self.config)

    def _old(self) -> AbstractContextManager[None]:
        """Use the weights of the policy that makes the rollouts inside the block."""
        return self.bank.using(OLD) if self.objective.averages else nullcontext()

    def _as_trained(self) -> AbstractContextManager[None]:
        """Switch guidance off inside the block if the objective trains on renoised videos."""
        return unguided(self.model) if self.objective.renoised else nullcontext()

    def _renoise(self, paths: list[Trajectory]) -> list[Trajectory]:
        return renoise_rollouts(self.model, paths, self.objective, self.config, self.comm, self.iteration)

    def _check(self, first: Trajectory) -> float:
        """Run all checks on the first batch of rollouts, and return the largest relative deviation in the replay."""
        policy, exact = self.config.policy, self.config.policy.updates_per_rollout > 1
        with self._as_trained():
            if not self.objective.renoised:
                off = check_replay(self.model, first, policy.replay_timesteps, self.comm, exact=exact)
            else:
                (first,) = self._renoise([first])
                with self._old():
                    first = with_old_velocities(self.model, first)
                # An average is the policy itself until that has moved.
                with self._old() if self.updates else nullcontext():
                    exact = exact and not self.objective.averages
                    off = check_replay(self.model, first, policy.replay_timesteps, self.comm, exact=exact)
            check_direction(self.model, first, self.comm)
            check_training(self.model, first, self.objective, self.config, self.comm)
        return off

    def prepare(self, paths: list[Trajectory], advantage: Tensor, used: Tensor) -> tuple[list[TrainBatch], int]:
        """Select the videos of a rollout that are trained on, and pack them into batches.

        Args:
            paths: This rank's rollouts, in batches.
            advantage: Advantages (P, G) of all ranks: one row per prompt, one column per video.
            used: Mask (P, G), boolean: the videos whose advantage counts.

        Returns:
            This rank's batches, equally many on every rank, and the number of videos that the loss is a mean over. The
            number counts the selected videos of all ranks, also those of groups with equal rewards, which may be left
            out of the batches. If no video is left to train on, there are no batches and the number is 0.
        """
        chosen = best_and_worst(advantage, used, self.config.policy.select)
        skip = self.config.policy.flat_groups == "skip" or self.objective.paired
        weight = chosen & has_signal(advantage)[:, None] if skip else chosen
        if not weight.any():
            return [], 0
        paths = self._renoise(paths) if self.objective.renoised else paths
        x0, first = paths[0].x0, self.comm.replica * len(paths)
        rows = [
            torch.split(x.flatten().to(x0.device), len(x0))[first : first + len(paths)] for x in (advantage, weight)
        ]
        batches = pack([TrainBatch(*columns) for columns in zip(paths, *rows, strict=True)], self.comm)
        if self.needs_old_velocity:
            with self._old():
                paths = [with_old_velocities(self.model, batch.trajectory) for batch in batches]
            batches = [replace(batch, trajectory=path) for batch, path in zip(batches, paths, strict=True)]
        return batches, int(chosen.sum())

    def _updates(self, batches: list[TrainBatch], samples: int) -> Iterator[tuple[list[TrainBatch], UpdateStep]]:
        """Yield, for each update on a rollout, its batches with the timesteps to train, and its `UpdateStep`.

        The anchor is renewed before each update if that is due.
        """
        kl, before, levels = self.config.kl, self.updates, self.windows.untrained_levels
        if kl.outside_weight and levels and INITIAL not in self.bank:
            self.bank.save(INITIAL)  # no update came before
        for epoch in range(self.config.policy.num_iterations if batches else 0):
            orders = [
                trained_steps(list(batch.trajectory.points), self.config, self.iteration, epoch) for batch in batches
            ]
            for n, steps in enumerate(zip(*orders, strict=True)):  # of each batch
                renew(self.bank, kl, self.updates)
                key = self.iteration, epoch, n
                places = evaluated_places(len(steps[0]), self.config, *key) if is_evaluated(kl, self.updates) else []
                on_policy = self.on_policy and self.updates == before
                outside = noised_videos(batches, levels, samples, self.config, self.comm, *key)
                weight = self.kl_weight.value
                step = UpdateStep(self.objective, self.equalizer, weight, samples, places, on_policy, outside)
                yield [replace(batch, steps=own) for batch, own in zip(batches, steps, strict=True)], step

    def _after_update(self, result: UpdateResult) -> None:
        if result.stepped:
            self.updates += 1
            self.kl_weight = next_weight(self.kl_weight, result.mean("kl_penalty"), self.rule)
        self._call("on_update", result)

    def run(self, iterations: int) -> None:
        """Train until `iterations` iterations are done, including those before a resume, or until `stop` is called."""
        self._call("on_start")
        while self.iteration < iterations and self.stop_reason is None:
            self.iterate()
        self._call("on_end")  # not after an error: a run that failed must not save

    def stop(self, reason: str) -> None:
        """End the run after the current iteration, and keep the reason in `stop_reason`."""
        self.stop_reason = reason

    def _call(self, event: str, *details: object) -> None:
        for callback in self.callbacks:
            getattr(callback, event)(self, *details)

    def state_dict(self) -> dict[str, Any]:
        """Return all state that the next iterations depend on.

        Noise and random orders are not part of the state, because they follow from seed and iteration alone.
        """
        return {
            "model": trained_state(self.model.module),
            "optimizer": self.optimizer.state_dict(),
            "bank": self.bank.state_dict(),
            "kl_weight": asdict(self.kl_weight),
            "iteration": self.iteration,
            "updates": self.updates,
            "torch_rng": torch.get_rng_state(),  # for a model or reward that draws its own numbers
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        load_trained_state(self.model.module, state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.bank.load_state_dict(state["bank"])
        self.kl_weight = KLWeight(**state["kl_weight"] | {"recent": tuple(state["kl_weight"]["recent"])})
        self.iteration, self.updates = state["iteration"], state["updates"]
        torch.set_rng_state(state["torch_rng"])
