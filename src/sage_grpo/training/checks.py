"""Refuses what a recipe cannot have with its model, its reward or its folders, before the run begins."""

import math
from pathlib import Path

from sage_grpo.config import ConfigError, RecipeConfig
from sage_grpo.core.comm import Comm
from sage_grpo.core.reward import Reward
from sage_grpo.core.rollout import SAME_SIGMA
from sage_grpo.core.video_model import VideoModel
from sage_grpo.core.windows import lowest_trained_level
from sage_grpo.errors import UserError
from sage_grpo.files import why_not_writable


def check_places(config: RecipeConfig) -> None:
    """Refuse folders that cannot be written, before anything is loaded."""
    for key, place in (("run.out", config.run.out), ("run.checkpoints", config.run.checkpoints)):
        if place and "://" not in place and (why := why_not_writable(Path(place))):
            raise ConfigError(f"{key}: {why}; name another folder")


def check_noise_levels(config: RecipeConfig) -> None:
    """Refuse adapters that do not act at every noise level that is trained."""
    lowest, asked = lowest_trained_level(config.sampling), config.tuning.min_sigma
    if asked > lowest + SAME_SIGMA:
        raise ConfigError(
            f"tuning.min_sigma={asked:g} is above the lowest noise level that is trained, {lowest:.4f}; use "
            f"{math.floor(1e4 * lowest) / 1e4:g} or less"
        )


def check_groups(config: RecipeConfig, reward: Reward, comm: Comm) -> None:
    """Refuse a layout where a reward compares the videos of a prompt, but no process has all of them."""
    world, group = comm.num_replicas, config.policy.num_generations
    share = config.rollouts // world
    if reward.groupwise and share % group:
        raise ConfigError(
            f"a reward compares the videos of a prompt, but a process makes {share} of {group}; use "
            f"policy.prompts_per_iteration={world * max(share // group, 1)} or fewer processes"
        )


def check_samples(config: RecipeConfig, model: VideoModel) -> None:
    """Refuse a size of sample videos that the model cannot make, before the first of them is made."""
    try:
        with model.resized(**config.run.sample_size if config.run.sample_every else {}):
            pass
    except UserError as error:
        raise ConfigError(f"run.sample_frames, sample_height, sample_width: {error}") from error
