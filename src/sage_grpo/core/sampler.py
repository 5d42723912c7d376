"""The plain sampler: no noise along the way, so a seed and a prompt always give the same video."""

from collections.abc import Sequence

import torch
from torch import Tensor

from sage_grpo.config import RecipeConfig
from sage_grpo.core.protocols import Prompt, VideoModel
from sage_grpo.core.rollout import sample
from sage_grpo.math.kernels import kernel_table
from sage_grpo.math.schedule import sigma_schedule


def generate(model: VideoModel, prompts: Sequence[Prompt], config: RecipeConfig, seeds: Sequence[int]) -> Tensor:
    """Clean latents by the plain ODE; a seed and a prompt always give the same video.

    Args:
        model: Asked for velocities, and not changed.
        prompts: One a video.
        config: Its `sampling.steps`, `shift` and `order` are used, in batches of `policy.batch_size`.
        seeds: One a video, of its initial noise.

    Returns:
        Latents for `model.decode`.
    """
    s, size = config.sampling, config.policy.batch_size
    table = kernel_table("ode", sigma_schedule(s.steps, s.shift), 0.0, s.order)
    keys = [("sample", seed) for seed in seeds]
    chunks = [slice(i, i + size) for i in range(0, len(prompts), size)]
    return torch.cat([sample(model, prompts[c], table, keys[c], keys[c]).x0 for c in chunks])
