"""Small checkpoints of the real classes of Stable Diffusion 3, and the prompts, as files that all frameworks read."""

import diffusers as df

from peers.work import PROMPTS
from sage_grpo.models import tiny
from sage_grpo.models.sd3 import StableDiffusion3

SIZES = ("tiny", "wide")


def make_pipeline(size):
    """`tiny` has 85 thousand weights, `wide` 2.4 million: there the network takes more of the time."""
    pipe = StableDiffusion3.tiny()
    if size == "wide":
        changes = {
            "num_layers": 4,
            "attention_head_dim": 32,
            "num_attention_heads": 4,
            "caption_projection_dim": 128,
        }
        shape = dict(pipe.transformer.config) | changes
        pipe.transformer = tiny.seeded(lambda: df.SD3Transformer2DModel.from_config(shape))
    return pipe


def make_files(folder, size):
    """Write the checkpoint and the prompts; returns their paths."""
    checkpoint, prompts = folder / "checkpoint", folder / "prompts"
    make_pipeline(size).save_pretrained(str(checkpoint))
    prompts.mkdir()
    for split in ("train", "test"):  # flow_grpo asks for both
        (prompts / f"{split}.txt").write_text("\n".join(PROMPTS) + "\n")
    return checkpoint, prompts
