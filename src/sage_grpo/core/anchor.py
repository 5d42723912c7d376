"""The anchor: a copy of the initial policy or of a recent one, to which the trust region measures its first KL.

The second KL is to the policy that made the rollout. The rollout stores the velocities of that policy, so this KL needs
no copy of the policy's weights, unless an average of the policy made the rollout.
"""

import math
from collections.abc import Sequence
from contextlib import nullcontext

import torch
from torch import Tensor

from sage_grpo.config import AlgorithmConfig, KLConfig
from sage_grpo.core.protocols import WeightsBank
from sage_grpo.core.rollout import Trajectory, keyed_rng, velocities
from sage_grpo.core.video_model import VideoModel

ANCHOR = "anchor"  # the name of its weights in a bank


def is_renewed(config: KLConfig, updates: int) -> bool:
    """Return whether the anchor is due to be renewed after `updates` optimizer updates.

    True before the first update, and with a moving anchor every `ref_model_sync_steps` updates. Always False without an
    anchor.
    """
    if config.anchor == "none":
        return False
    return updates == 0 or (config.anchor == "moving" and updates % config.ref_model_sync_steps == 0)


def is_evaluated(config: KLConfig, updates: int) -> bool:
    """Return whether the next update, after `updates` earlier updates, evaluates the anchor.

    True if there is an anchor that may differ from the policy. Immediately after the policy is copied to the anchor,
    their KL is 0, and no evaluation is needed.

    Examples:
        >>> [is_evaluated(KLConfig(anchor="moving", ref_model_sync_steps=2), updates) for updates in range(5)]
        [False, True, False, True, False]
    """
    copied = updates == 0 or config.decay == 0
    return config.anchor != "none" and not (copied and is_renewed(config, updates))


def renew(bank: WeightsBank, config: KLConfig, updates: int) -> None:
    """Renew the anchor if `is_renewed` says so: copy the policy at the start, later move the anchor towards the policy.

    A later renewal sets anchor ← decay·anchor + (1-decay)·policy, where decay is `kl.decay`.
    """
    if is_renewed(config, updates):
        bank.save(ANCHOR, config.decay if updates else 0.0)


def evaluated_places(steps: int, config: AlgorithmConfig, *key: int | str) -> list[int]:
    """Draw the timesteps of one update at which the anchor is evaluated, as sorted indices below `steps`.

    On average, a share `kl.share` of the `steps` timesteps is drawn: their number is rounded up or down at random. Seed
    and `key` determine the draw, so it is the same on all ranks.
    """
    rng = keyed_rng(config.seed, *key, "anchor")
    count = math.floor(config.kl.share * steps + rng.random())
    return sorted(rng.permutation(steps)[:count].tolist())


@torch.no_grad()
def anchor_velocities(
    model: VideoModel, bank: WeightsBank, passes: Sequence[tuple[Trajectory, Sequence[int]]]
) -> list[dict[int, Tensor]]:
    """Return, for each forward pass of an update, a dict from timestep to the anchor's velocities (B, …) there.

    The anchor's weights are put in place only once for all passes, because this may move every weight.

    Args:
        model: The video model, which holds the policy's weights before and after the call.
        bank: Holds the weights of the anchor.
        passes: For each pass, its trajectory and the timesteps at which the anchor is evaluated, possibly none.
    """
    with bank.using(ANCHOR) if any(steps for _, steps in passes) else nullcontext():
        return [
            dict(zip(steps, velocities(model, trajectory, steps), strict=True)) if steps else {}
            for trajectory, steps in passes
        ]
