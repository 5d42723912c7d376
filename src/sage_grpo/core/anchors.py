"""Who the reference policy is: the initial one, a recent one, or none. (The previous one needs no copy.)"""

from sage_grpo.config import KLConfig

ANCHOR = "anchor"


def anchor_is_due(config: KLConfig, updates: int) -> bool:
    """Copy the policy at the start, and every N updates if the anchor moves."""
    if config.anchor == "none":
        return False
    return updates == 0 or (config.anchor == "moving" and updates % config.ref_model_sync_steps == 0)
