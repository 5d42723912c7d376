"""Two processes share a video, and each also computes it alone: `torchrun … -m distributed.sequence_worker FILE`.

Writes, for every model, how far forward and gradients are from those of one process.
"""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from sage_grpo import registry
from sage_grpo.core.protocols import Prompt
from sage_grpo.core.rollout import keyed_noise
from sage_grpo.data.prompts import open_prompts
from sage_grpo.distributed.processes import join, launched, leave
from sage_grpo.models import contract
from sage_grpo.registry import resolve_model
from sage_grpo.training.build import own_prompts
from tiny_models import disturb, tiny_model

SIZES = {
    "hunyuan15": (9, 48, 80),
    "wan": (9, 32, 48),
    "ltx": (9, 64, 96),
    "ltx2": (9, 64, 128),
}  # HunyuanVideo-1.5: an odd number of tokens
PICTURES = {"sd3", "qwen-image", "z-image"}  # one fits on one device
RECOMPUTED = (
    "hunyuan15",
    "wan",
    "ltx2",
)  # with gradient checkpointing: the messages are sent again in the backward pass


def answer(model, x, sigma, condition, target):
    """The velocity, and the gradients of a loss on it."""
    model.module.zero_grad(set_to_none=True)
    v = model.velocity(x, sigma, condition)
    (v.float() * target).sum().backward()
    return v.detach(), {n: p.grad.clone() for n, p in model.module.named_parameters() if p.grad is not None}


def relative(a, b):
    return ((a - b).abs().max() / b.abs().max().clamp_min(1e-12)).item()


def make(kind):
    if own_prompts(kind):
        model = resolve_model(kind).from_pretrained()
        asked = open_prompts(own_prompts(kind), seed=0)
        return model, model.encode(asked(0, 2))
    frames, height, width = SIZES[kind.removesuffix("-i2v").split("2.2")[0]]
    tuning = {"mode": "full", "gradient_checkpointing": kind in RECOMPUTED, "keep_attention": kind == "wan"}
    model = tiny_model(resolve_model(kind), tuning, frames=frames, height=height, width=width)
    asked = contract.prompts_for(model)  # of different lengths
    return model, model.encode(asked[:1] * 2 if model.needs_image else asked)


def compare(kind, processes):
    model, condition = make(kind)
    disturb(model)
    shape = model.latent_shape(Prompt(""))
    x, target = (keyed_noise(shape, [(0, name, i) for i in range(2)], torch.device("cpu")) for name in ("x", "target"))
    sigma = torch.tensor([0.95, 0.4])  # both experts of a mixture
    expected, gradients = answer(model, x, sigma, condition, target)
    model.share_sequence(processes.sp)
    found, parts = answer(model, x, sigma, condition, target)
    assert parts.keys() == gradients.keys()
    for part in parts.values():  # as FSDP does
        dist.all_reduce(part.div_(launched()))
    largest = max(g.abs().max() for g in gradients.values())
    off = {name: relative(parts[name], g) for name, g in gradients.items() if g.abs().max() > 1e-6 * largest}
    worst = max(off, key=off.get)
    same = processes.everybody(found.sum().item())
    assert len(set(same)) == 1, "the processes of one video went apart"
    return {
        "forward": relative(found, expected),
        "gradient": off[worst],
        "worst": worst,
        "tokens": processes.sp.lengths,
    }


def check_agreement(processes):
    """The processes of one video must not go on with numbers of their own: a scorer need not say the same twice."""
    mine = torch.tensor([float(processes.global_rank), 7.0])
    for found in (processes.gather(mine), processes.mean(mine)):
        assert len(set(map(str, processes.everybody(found.tolist())))) == 1, "they went on with different numbers"


def main():
    torch.set_num_threads(1)
    processes = join(launched(), launched(), 1, "cpu")
    kinds = sys.argv[2:] or [kind for kind in registry.models() if kind not in PICTURES]
    check_agreement(processes)
    found = {kind: compare(kind, processes) for kind in kinds}
    if processes.main:
        Path(sys.argv[1]).write_text(json.dumps(found, indent=1))
    leave()


if __name__ == "__main__":
    main()
