"""Who the reference policy is: the initial one, a recent one, or none. (The previous one needs no copy.)"""

from sage_grpo.config import KLConfig

ANCHOR = "anchor"
OLD = "old"  # the policy that makes the rollouts, where it is an average of the trained one


def anchor_is_due(config: KLConfig, updates: int) -> bool:
    """Copy the policy at the start, and every N updates if the anchor moves."""
    if config.anchor == "none":
        return False
    return updates == 0 or (config.anchor == "moving" and updates % config.ref_model_sync_steps == 0)


def anchor_is_asked(config: KLConfig, updates: int) -> bool:
    """Not where it is still a copy of the policy: the KL to oneself is 0."""
    copied = updates == 0 or config.decay == 0
    return config.anchor != "none" and not (copied and anchor_is_due(config, updates))
