r"""The trust region outside the window: the policy's velocities at noise levels that no step trains.

Reward and KL act at the trained steps alone. What the network learns there also changes it at all other noise levels,
and nothing pulls it back. This third term does. Videos of the rollout get fresh noise of an untrained level. There the
change of the velocity from that of the initial policy is penalized: $w\,\lVert v-v_0\rVert^2/d$.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sage_grpo.config import AlgorithmConfig
from sage_grpo.core.comm import Comm
from sage_grpo.core.protocols import Condition, WeightsBank
from sage_grpo.core.rollout import keyed_noise, keyed_rng
from sage_grpo.core.selection import TrainBatch
from sage_grpo.core.video_model import VideoModel

INITIAL = "initial"  # the name of the initial policy's weights in a bank


@dataclass(frozen=True)
class NoisedVideos:
    """Videos of a batch with fresh noise, each at one of the untrained noise levels."""

    x: Tensor
    """Noisy latents (n, …)."""
    sigma: Tensor
    """Noise level of each video (n,)."""
    condition: Condition
    weight: Tensor
    """Weight of each video in the penalty (n,): 0 for videos that are not trained on."""


def noised_videos(
    batches: Sequence[TrainBatch],
    levels: Sequence[float],
    samples: int,
    config: AlgorithmConfig,
    comm: Comm,
    *key: int | str,
) -> list[NoisedVideos]:
    """Draw a share `kl.outside_share` of the videos of an update, and add noise of an untrained level to each.

    The result is empty if `kl.outside_weight` is 0 or there are no `levels`.

    The number per batch is rounded up or down at random. Rows and levels are the same in all batches and on all ranks,
    so that ranks evaluate the same expert of a mixture at a time. Levels take turns, so that all occur. With batches of
    one video, an update measures all videos at one level or none; the mean over updates is the same.

    The penalty is a mean over the same videos as the loss, in expectation over the draw.

    Args:
        batches: This rank's batches of the update, all of one size.
        levels: The noise levels to draw from.
        samples: Number of videos on all ranks that the loss is a mean over.
        config: The settings.
        comm: Tells the place of this rank's batches among those of all ranks, which keys the noise.
        key: Determines the draw together with the seed.
    """
    if not config.kl.outside_weight or not levels:
        return []
    size, share = len(batches[0].weight), config.kl.outside_share
    rng = keyed_rng(config.seed, *key, "outside")
    rows = sorted(rng.permutation(size)[: math.floor(share * size + rng.random())].tolist())
    turns = rng.permutation(len(levels))
    drawn = torch.tensor([levels[turns[i % len(levels)]] for i in range(len(rows))])
    out = []
    for n, batch in enumerate(batches if rows else ()):
        x0, place = batch.trajectory.x0[rows], comm.replica * len(batches) + n
        noise = keyed_noise(
            tuple(x0.shape[1:]), [(config.seed, *key, "outside", place * size + row) for row in rows], x0.device
        )
        sigma = drawn.to(x0)
        s = sigma.view(-1, *(1 for _ in x0.shape[1:]))
        condition = {name: value[rows] for name, value in batch.trajectory.condition.items()}
        weight = batch.weight[rows].to(x0) * (comm.num_replicas / (share * samples))  # ranks average their gradients
        out.append(NoisedVideos((1 - s) * x0 + s * noise, sigma, condition, weight))
    return out


@torch.no_grad()
def initial_velocities(model: VideoModel, bank: WeightsBank, videos: Sequence[NoisedVideos]) -> list[Tensor]:
    """Return the velocities (n, …) of the initial policy at each batch of noised videos.

    The initial weights are put in place only once for all batches, because this may move every weight.
    """
    if not videos:
        return []
    with bank.using(INITIAL):
        return [model.velocity(batch.x, batch.sigma, batch.condition) for batch in videos]


def velocity_change(model: VideoModel, videos: NoisedVideos, initial: Tensor) -> Tensor:
    """Return the weighted sum over videos of the mean squared change of the velocity, a tensor without dimensions.

    Args:
        model: Has the policy's weights.
        videos: The points at which its velocity is compared.
        initial: Velocities (n, …) of the initial policy there.
    """
    change = model.velocity(videos.x, videos.sigma, videos.condition).float() - initial.float()
    total: Tensor = (videos.weight * change.square().flatten(1).mean(1)).sum()
    return total
