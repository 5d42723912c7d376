"""The plain sampler: no noise along the way, so a seed and a prompt always give the same video."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from sage_grpo.config import RecipeConfig
from sage_grpo.core.protocols import Comm, Prompt, VideoModel, Videos
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


def dealt(count: int, comm: Comm) -> list[int]:
    """Which of `count` videos this rank makes: every so many-th, and as many on every rank.

    Weights that are shared out are gathered by all, so who has none left makes the last one again.
    """
    rounds = -(-count // comm.world)
    return [min(comm.rank + i * comm.world, count - 1) for i in range(rounds)]


def collected(made: Videos, count: int, comm: Comm, *, keep: bool) -> Videos | None:
    """All of what was dealt out, on the host of a rank that keeps it. One at a time: no device needs room for all."""
    frames, sounds = list[Tensor](), list[Tensor]()
    for i in range(count):
        for own, held in ((made.frames, frames), (made.sound, sounds)):
            if own is not None:
                one = comm.sent(own[i // comm.world], i % comm.world)
                held.extend([one.cpu()] if keep else [])
    return replace(made, frames=torch.stack(frames), sound=torch.stack(sounds) if sounds else None) if keep else None
