"""The plain sampler: no noise along the way, so a seed and a prompt always give the same video."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from sage_grpo.config import RecipeConfig
from sage_grpo.core.comm import Comm
from sage_grpo.core.protocols import Prompt, Videos
from sage_grpo.core.rollout import sample
from sage_grpo.core.video_model import VideoModel
from sage_grpo.math.kernels import kernel_table
from sage_grpo.math.schedule import sigma_schedule


def generate(model: VideoModel, prompts: Sequence[Prompt], config: RecipeConfig, seeds: Sequence[int]) -> Tensor:
    """Generate clean latents by the plain ODE; a seed and a prompt always give the same video.

    Args:
        model: Evaluated, and not changed.
        prompts: One per video.
        config: Gives `sampling.steps`, `sampling.shift`, `sampling.order`, and the batch size `policy.batch_size`.
        seeds: Seeds of the initial noise, one per video.

    Returns:
        Latents (N, …) of the N videos, for `model.decode` or `model.render`.

    Examples:
        >>> from sage_grpo import Prompt, generate, load_recipe
        >>> from sage_grpo.training.build import build_model
        >>> config = load_recipe("lab")
        >>> model = build_model(config)
        >>> latents = generate(model, 2 * [Prompt("a red circle moving left")], config, seeds=[0, 1])
        >>> len(model.render(latents))
        2
    """
    s, size = config.sampling, config.policy.batch_size
    table = kernel_table("ode", sigma_schedule(s.steps, s.shift), 0.0, s.order)
    keys = [("sample", seed) for seed in seeds]
    chunks = [slice(i, i + size) for i in range(0, len(prompts), size)]
    return torch.cat([sample(model, prompts[c], table, keys[c], keys[c]).x0 for c in chunks])


def rank_indices(count: int, comm: Comm) -> list[int]:
    """Return which of `count` videos this rank makes, as indices.

    All ranks make equally many, because FSDP's all-gathers are collective. A rank with too few videos makes the last
    video again.
    """
    rounds = -(-count // comm.num_replicas)
    return [min(comm.replica + i * comm.num_replicas, count - 1) for i in range(rounds)]


def gather_videos(made: Videos, count: int, comm: Comm, *, keep: bool) -> Videos | None:
    """Collect the videos of all ranks: return all of them, on the host, if `keep` is true for this rank, else None.

    Videos travel one by one, because no device has room for all.

    Args:
        made: The videos of this rank, in the order of `rank_indices`.
        count: Number of videos on all ranks together.
        comm: Sends the videos. All ranks must call this function together.
        keep: Whether this rank needs the videos.
    """
    frames, sounds = list[Tensor](), list[Tensor]()
    for i in range(count):
        for own, held in ((made.frames, frames), (made.sound, sounds)):
            if own is not None:
                one = comm.broadcast(own[i // comm.num_replicas], i % comm.num_replicas)
                held.extend([one.cpu()] if keep else [])
    return replace(made, frames=torch.stack(frames), sound=torch.stack(sounds) if sounds else None) if keep else None
