"""The same model in bfloat16 on one process and on two: what the network is told, and what it answers.

torchrun … -m distributed.precision_worker FOLDER
"""

import json
import sys
from pathlib import Path

import torch

from sage_grpo.config import load_recipe
from sage_grpo.core.protocols import Prompt
from sage_grpo.distributed.launch import recording_failures
from sage_grpo.distributed.processes import join, leave
from sage_grpo.distributed.shard import local, my_slice
from sage_grpo.models.library_logging import quiet_libraries
from sage_grpo.registry import resolve_model
from sage_grpo.training import build

MODELS, MODES = ("wan", "hunyuan15"), ("lora", "full")


def disturb(model):
    """Some progress of the training: values that bfloat16 cannot hold, by the parameter's name on every process."""
    with torch.no_grad():
        for name, parameter in model.module.named_parameters():
            if parameter.requires_grad:
                drawn = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(sum(map(ord, name))))
                local(parameter).add_(0.05 * drawn[my_slice(parameter)])


def answer(config, processes):
    """Velocity and gradient of a probe, and every timestep that the network embedded."""
    model, told = build.build_model(config, processes), []
    disturb(model)
    network = model.pipe.transformer
    embedder = getattr(network, "condition_embedder", None) or network.time_embed
    projection = getattr(embedder, "timesteps_proj", None) or embedder.time_proj
    projection.register_forward_pre_hook(lambda module, inputs: told.append(inputs[0].flatten().tolist()))
    x = torch.randn(2, *model.latent_shape(Prompt("")), generator=torch.Generator().manual_seed(3))
    condition = model.encode([Prompt("a red cat")] * 2)
    v = model.velocity(x, torch.tensor([0.93712, 0.93712]), condition)
    v.float().square().mean().backward()
    grads = {name: p.grad for name, p in model.module.named_parameters() if p.grad is not None}
    norm = sum(float(g.full_tensor().square().sum() if processes else g.square().sum()) for g in grads.values())
    return v.detach().float(), told, norm**0.5


def main():
    folder, found = Path(sys.argv[1]), {}
    quiet_libraries()
    processes = join(2, 1, 1, "cpu")
    with recording_failures(folder, processes.global_rank, 2):
        for name in MODELS:
            adapter = resolve_model(name)
            size = dict(zip(("frames", "height", "width"), adapter.tiny_size, strict=True))
            for mode in MODES:
                recipe = {
                    "model": {
                        "type": name,
                        "path": str(folder / name),
                        "guidance_scale": 3.0,
                        "options": dict(adapter.tiny_options),
                        **size,
                    },
                    "tuning": {"mode": mode, "rank": 4, "precision": "bfloat16", "conditions": str(folder / "c")},
                }
                (one, told, norm), (two, told_two, norm_two) = (
                    answer(load_recipe(recipe), together) for together in (None, processes)
                )
                off = ((two - one).norm() / one.norm()).item()
                found[f"{name} {mode}"] = {"off": off, "told": [told, told_two], "norms": [norm, norm_two]}
        if processes.main:
            (folder / "found.json").write_text(json.dumps(found))
    leave()


if __name__ == "__main__":
    main()
