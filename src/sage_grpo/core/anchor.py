"""The anchor: the initial policy or a recent one, the reference of the trust region's first KL.

The reference of the second KL is the policy that made the rollout. Its velocities are stored, so this KL needs no copy
of the weights, unless an average of the policy made the rollout.
"""

import math
from collections.abc import Sequence
from contextlib import nullcontext

import torch
from torch import Tensor

from sage_grpo.config import AlgorithmConfig, KLConfig
from sage_grpo.core.protocols import VideoModel, WeightsBank
from sage_grpo.core.rollout import Trajectory, keyed_rng, velocities

ANCHOR = "anchor"  # the name of its weights in a bank


def is_renewed(config: KLConfig, updates: int) -> bool:
    """Return whether the anchor is renewed after `updates` updates.

    That is so at 0, and every `ref_model_sync_steps` updates if it moves.
    """
    if config.anchor == "none":
        return False
    return updates == 0 or (config.anchor == "moving" and updates % config.ref_model_sync_steps == 0)


def is_evaluated(config: KLConfig, updates: int) -> bool:
    """Return whether the next update, after `updates` updates, evaluates the anchor.

    It does not where the anchor is a fresh copy of the policy, because its KL is then 0.

    >>> [is_evaluated(KLConfig(anchor="moving", ref_model_sync_steps=2), updates) for updates in range(5)]
    [False, True, False, True, False]
    """
    copied = updates == 0 or config.decay == 0
    return config.anchor != "none" and not (copied and is_renewed(config, updates))


def renew(bank: WeightsBank, config: KLConfig, updates: int) -> None:
    """Renew the anchor if that is due: copy the policy at the start, later move the anchor towards it.

    It keeps `kl.decay` of itself: anchor ← decay·anchor + (1-decay)·policy.
    """
    if is_renewed(config, updates):
        bank.save(ANCHOR, config.decay if updates else 0.0)


def evaluated_places(steps: int, config: AlgorithmConfig, *key: int | str) -> list[int]:
    """Draw at which of an update's `steps` timesteps the anchor is evaluated, as sorted indices.

    They are `kl.share` of all on average, rounded at random, and the same on all ranks.
    """
    rng = keyed_rng(config.seed, *key, "anchor")
    count = math.floor(config.kl.share * steps + rng.random())
    return sorted(rng.permutation(steps)[:count].tolist())


@torch.no_grad()
def anchor_velocities(
    model: VideoModel, bank: WeightsBank, passes: Sequence[tuple[Trajectory, Sequence[int]]]
) -> list[dict[int, Tensor]]:
    """Return the anchor's velocities (B, …) by timestep, for each pass of an update.

    All passes are evaluated together, because loading the anchor's weights may move all of them.

    Args:
        model: Holds the policy's weights, before and after.
        bank: Holds the weights of the anchor.
        passes: For each pass its trajectory and the timesteps at which the anchor is evaluated, possibly none.
    """
    with bank.using(ANCHOR) if any(steps for _, steps in passes) else nullcontext():
        return [
            dict(zip(steps, velocities(model, trajectory, steps), strict=True)) if steps else {}
            for trajectory, steps in passes
        ]
