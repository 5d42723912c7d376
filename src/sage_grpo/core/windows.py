"""The windows of stochastic steps in rollouts, and the forward passes of rollouts. All ranks compute the same."""

from torch import Tensor

from sage_grpo.config import AlgorithmConfig, SamplingConfig
from sage_grpo.core.rollout import Key, keyed_rng
from sage_grpo.math.kernels import KernelTable, kernel_table
from sage_grpo.math.schedule import short_tail, sigma_schedule, stochastic_window


def full_table(sampling: SamplingConfig, *, explores: bool = True) -> KernelTable:
    """Return the kernel table of a rollout in which all steps are stochastic, without a window.

    The last step is deterministic if `sampling.last_step` is `ode`.

    Args:
        sampling: Names the kernel, its noise and the steps.
        explores: Whether the rollout needs noise to learn from. If False, the table may be deterministic.

    Raises:
        ValueError: The rollout explores, but no step has noise.
    """
    table = _table(sampling, sigma_schedule(sampling.steps, sampling.shift))
    if explores and not table.stochastic.any():
        raise ValueError(f"kernel {sampling.kernel!r} with eta={sampling.eta} has no noise to learn from; raise eta")
    return table


def _table(sampling: SamplingConfig, sigmas: Tensor) -> KernelTable:
    table = kernel_table(sampling.kernel, sigmas, sampling.eta, sampling.order)
    if sampling.last_step == "ode":
        table = table.ode_outside(table.sigma_next > 0)
    return table


def lowest_trained_level(sampling: SamplingConfig) -> float:
    """Return the lowest noise level of a step that a window covers."""
    sigmas = sigma_schedule(sampling.steps, sampling.shift)
    return min(sigmas[step].item() for step in range(sampling.steps) if step not in sampling.untrained_steps)


def my_samples(rollouts: int, world: int, rank: int) -> range:
    """Return the indices of this rank's rollouts, if `world` ranks share the `rollouts` of an iteration equally."""
    share = rollouts // world
    return range(rank * share, (rank + 1) * share)


class Windows:
    """The kernel tables of a run's rollouts. Outside its window of stochastic steps, a rollout follows the plain ODE.

    With an objective on renoised videos there is no window, and the whole rollout is deterministic.

    Args:
        config: Its `sampling.window` says where windows are.
        world: Number of ranks (replicas) that share an iteration's rollouts.
        experts: Number of networks that the model uses in turn, by noise level.
    """

    def __init__(self, config: AlgorithmConfig, world: int = 1, experts: int = 1) -> None:
        self.config, self.world, sampling = config, world, config.sampling
        if sampling.window.per == "prompt" and world > 1 and experts > 1:
            raise ValueError(
                "sampling.window.per=prompt would have processes ask different experts of this model at one time, "
                "and shares of its weights are gathered by all of them together; use sampling.window.per=iteration"
            )
        self.explores = config.policy.points is None
        self.full, size = full_table(sampling, explores=self.explores), sampling.window_size
        possible = sampling.window_starts if self.explores else [0]
        noisy = [i for i in possible if self.full.stochastic[i : i + size].all()]
        self.places = noisy or list(possible)  # a kernel may leave no noise at the end
        self.lengths = {start: len(self.table(start)) for start in possible}
        # Ranks use the same expert at a time only where all of them begin whole groups.
        in_step = world == 1 or experts == 1 or config.rollouts // world % config.policy.num_generations == 0
        self.share_prefixes = sampling.shared_initial_noise and in_step

    @property
    def untrained_levels(self) -> list[float]:
        """The noise levels of a whole rollout at which no window trains, from noise to data.

        An objective on renoised videos trains everywhere, so there are none.
        """
        if not self.explores:
            return []
        sampling = self.config.sampling
        sigmas = sigma_schedule(sampling.steps, sampling.shift)
        return [sigmas[step].item() for step in sampling.untrained_steps]

    def starts(self, iteration: int) -> list[int]:
        """Return, for each prompt of an iteration, the index of the first stochastic step in its rollouts."""
        window, places, prompts = self.config.sampling.window, self.places, self.config.policy.prompts_per_iteration
        if not self.explores:
            return [0] * prompts
        if isinstance(window.start, int):
            return [window.start] * prompts
        if window.start == "progressive":
            return [places[iteration // window.every % len(places)]] * prompts
        keys: list[Key] = [(n, "window") for n in range(prompts)] if window.per == "prompt" else [("window",)]
        drawn = [places[keyed_rng(self.config.seed, iteration, *key).integers(len(places))] for key in keys]
        return drawn * (prompts // len(keys))

    def tables(self, iteration: int) -> list[KernelTable]:
        """Return, for each prompt of an iteration, the kernel table of its rollouts."""
        starts = self.starts(iteration)
        made = {start: self.table(start) for start in set(starts)}
        return [made[start] for start in starts]

    def table(self, start: int) -> KernelTable:
        """Return the kernel table of a rollout whose window begins at step `start`.

        Up to the end of the window, its noise levels are those of `full`. After the window, steps may be fewer and
        longer.
        """
        sampling, size = self.config.sampling, self.config.sampling.window_size
        if not self.explores:
            return self.full
        table = _table(sampling, short_tail(sampling.steps, sampling.shift, start + size, sampling.tail))
        return table.ode_outside(stochastic_window(len(table), size, start) & table.stochastic)

    def passes(self, iteration: int) -> list[list[int]]:
        """Return the forward passes of an iteration's rollout: a list per rank, with the number of videos in each pass.

        If the rollouts of a group begin with the same noise, a rank computes their common steps once. If a rank needs
        fewer passes than another, it adds passes of one video, because FSDP's all-gathers are collective.
        """
        starts = self.starts(iteration)
        ranks = [self._own_passes(starts, rank) for rank in range(self.world)]
        most = max(map(len, ranks))
        return [asked + [1] * (most - len(asked)) for asked in ranks]

    def padding_passes(self, iteration: int, rank: int) -> int:
        """Return the number of passes that `rank` adds in an iteration, to run as many as the rank that needs most."""
        if self.world == 1:
            return 0
        return len(self.passes(iteration)[rank]) - len(self._own_passes(self.starts(iteration), rank))

    def _own_passes(self, starts: list[int], rank: int) -> list[int]:
        policy, asked, reached = self.config.policy, list[int](), -1
        for first in my_samples(self.config.rollouts, self.world, rank)[:: policy.batch_size]:
            group, last = (i // policy.num_generations for i in (first, first + policy.batch_size - 1))
            prefix = starts[group] if self.share_prefixes else 0
            begun = last - max(group - 1, reached)
            asked += [begun] * (prefix if begun else 0) + [policy.batch_size] * (self.lengths[starts[group]] - prefix)
            reached = last
        return asked
