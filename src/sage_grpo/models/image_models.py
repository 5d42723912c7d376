"""Helpers of the adapters for image models, which treat a picture as a video of one frame."""

from typing import Any

import diffusers as df

from sage_grpo.models.base import DiffusersModel
from sage_grpo.models.errors import ModelError


def refuse_frames(model: DiffusersModel) -> None:
    if model.frames != 1:
        raise ModelError(f"{type(model).__name__} makes pictures: model.frames={model.frames} must be 1")


def tiny_vae(scaling: float, shift: float) -> Any:
    """Return a VAE at toy size, of the class that several image models share.

    Args:
        scaling: The VAE's `scaling_factor`.
        shift: The VAE's `shift_factor`.
    """
    return df.AutoencoderKL(
        block_out_channels=(8, 8),
        down_block_types=("DownEncoderBlock2D",) * 2,
        norm_num_groups=4,
        up_block_types=("UpDecoderBlock2D",) * 2,
        latent_channels=4,
        layers_per_block=1,
        scaling_factor=scaling,
        shift_factor=shift,
        use_quant_conv=False,
        use_post_quant_conv=False,
    )
