"""The rollouts of an iteration: sample the videos, decode them, submit them to the reward, and gather their scores."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from sage_grpo.config import AlgorithmConfig
from sage_grpo.core.callback import Rollouts
from sage_grpo.core.comm import Comm
from sage_grpo.core.protocols import Prompt, Videos
from sage_grpo.core.reward import Reward
from sage_grpo.core.rollout import Key, Prefixes, Trajectory, sample, velocity_at
from sage_grpo.core.scores import Scores
from sage_grpo.core.video_model import VideoModel
from sage_grpo.core.windows import Windows, my_samples
from sage_grpo.errors import UserError


class RewardFailure(UserError, RuntimeError):
    """Raised when a larger share of an iteration's rewards failed than `policy.max_failed_rewards` allows."""


def collect(
    model: VideoModel,
    reward: Reward,
    prompts: Sequence[Prompt],
    config: AlgorithmConfig,
    windows: Windows,
    iteration: int,
    *,
    comm: Comm,
) -> Rollouts:
    """Sample this rank's part of an iteration's videos, decode them and submit them for scoring.

    Noise is keyed by the global index of a sample, never by rank.

    Args:
        model: Has the weights of the policy that makes the rollouts.
        reward: Gets the videos, in batches or group by group.
        prompts: The P prompts of the iteration. G videos are made of each, on all ranks together.
        config: Says how videos are sampled, and how many.
        windows: Gives the kernel table of each prompt.
        iteration: Number of the iteration, which keys the noise.
        comm: Says which of the videos are this rank's.
    """
    size, group = config.policy.batch_size, config.policy.num_generations
    mine = my_samples(config.rollouts, comm.num_replicas, comm.replica)
    out = Rollouts([prompts[i // group] for i in mine])
    prefixes, tables = Prefixes() if windows.share_prefixes else None, windows.tables(iteration)
    for first in mine[::size]:
        batch = range(first, first + size)
        samples: list[Key] = [(config.seed, iteration, i) for i in batch]
        shared: list[Key] = [(config.seed, iteration, i // group * group) for i in batch]
        initial = shared if config.sampling.shared_initial_noise else samples
        trajectory = sample(
            model, [prompts[i // group] for i in batch], tables[first // group], initial, samples, prefixes
        )
        out.trajectories.append(trajectory)
        _decode(out, model, reward, comm, config)
    _pad_forward_passes(model, out.trajectories[-1], windows.padding_passes(iteration, comm.replica))
    return out


@torch.no_grad()
def _pad_forward_passes(model: VideoModel, trajectory: Trajectory, passes: int) -> None:
    """Run extra forward passes, `passes` in number, so that this rank runs as many as the rank that needs most.

    FSDP's all-gathers are collective, so all ranks must run the same number.
    """
    one = {name: value[:1] for name, value in trajectory.condition.items()}
    for _ in range(passes):
        velocity_at(model, trajectory.x0[:1], 1.0, one)


def _decode(rollouts: Rollouts, model: VideoModel, reward: Reward, comm: Comm, config: AlgorithmConfig) -> None:
    """Decode the videos that are sampled but not yet decoded, and submit them for scoring.

    Remote scorers work while the next videos are made. Processes that share a video have the same latents, and each
    decodes a part of the videos. They postpone decoding until the videos divide into equal parts, or until the
    rollout ends.
    """
    batch, sharers = config.policy.batch_size, comm.sp_size
    unit = config.policy.num_generations if reward.groupwise else 1
    made, whole = len(rollouts.trajectories) * batch, len(rollouts.prompts)
    fresh = made - rollouts.dealt
    if fresh % (unit * sharers) and made < whole:
        return
    share = math.ceil(fresh / unit / sharers) * unit
    skipped = share * comm.sp_rank
    first = rollouts.dealt + skipped
    latents = torch.cat([trajectory.x0 for trajectory in rollouts.trajectories[rollouts.dealt // batch :]])
    own = latents[skipped : skipped + share]
    rollouts.dealt = made
    if not len(own):
        return
    videos = Videos.joined([model.render(x0) for x0 in torch.split(own, batch)])
    rollouts.videos.extend(videos.split(batch))
    size = unit if reward.groupwise else batch
    for i, scored in enumerate(videos.split(size)):
        part = slice(first + i * size, first + i * size + len(scored))
        rollouts.scores.append((part, reward.submit(scored, rollouts.prompts[part])))


def gather_scores(
    rollouts: Rollouts, names: Sequence[str], comm: Comm, on_scores: Callable[[Scores], None]
) -> tuple[Tensor, Tensor]:
    """Wait for a rollout's scores, and return the scores of all ranks (N, R) with a mask (N, R) of the valid ones.

    There is one row per video, in the order of the iteration's rollouts, and one column per score. Values are
    float64, on the host.

    Args:
        rollouts: The rollouts of this replica, submitted for scoring.
        names: Names of the R scores.
        comm: Gathers the scores of the other ranks.
        on_scores: Called with the scores of each batch of this process's videos.
    """
    values = torch.zeros(len(rollouts.prompts), len(names), dtype=torch.float64)
    valid = torch.zeros_like(values)
    for rows, wait in rollouts.scores:
        scores, expected = wait(), values[rows].shape
        if scores.values.shape != expected:
            raise ValueError(
                f"reward {list(names)} returned {tuple(scores.values.shape)} values for "
                f"{expected[0]} videos; one row per video and one column per name are needed"
            )
        held = scores.on_host()
        values[rows], valid[rows] = held.values, held.valid.double()
        on_scores(scores)
    return comm.gather(comm.sum_sp(values)), comm.gather(comm.sum_sp(valid)).bool()


def check_failed(valid: Tensor, most: float, iteration: int) -> None:
    """Raise a `RewardFailure` if more than a share `most` of the rewards (P, G) in the mask `valid` are missing."""
    if 1 - valid.double().mean().item() > most:
        raise RewardFailure(
            f"{(~valid).sum().item()} of {valid.numel()} rewards failed in iteration {iteration}; at most "
            f"{most:.0%} may (policy.max_failed_rewards): look at the scorer first"
        )
