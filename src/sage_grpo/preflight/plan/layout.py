"""What a process of a recipe's layout holds and saves, without starting any process."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sage_grpo.config import RecipeConfig
from sage_grpo.core.loop import Loop
from sage_grpo.core.outside import INITIAL
from sage_grpo.core.passes import outside_points
from sage_grpo.core.video_model import VideoModel
from sage_grpo.distributed.checkpoint import saved_tensors
from sage_grpo.distributed.fake_group import pretend
from sage_grpo.distributed.processes import Processes
from sage_grpo.distributed.shard import shard
from sage_grpo.training import build
from sage_grpo.weights.optimizers import build_optimizer
from sage_grpo.weights.prepare import make_bank


@dataclass(frozen=True)
class Contents:
    """The tensors that a layout's first process holds, by kind, and those that it saves, by path in a checkpoint."""

    held: Mapping[str, Iterable[Tensor]]
    saved: Mapping[str, Tensor]


def contents(model: VideoModel, config: RecipeConfig, processes: Processes) -> Contents:
    """Return the tensors that the first process of a layout holds and saves after its first update.

    The trainer's own optimizer, weights bank and loop state are used. The model is sharded in place, and makes an
    update.
    """
    shard(model, processes.weights_mesh, model.autocast_dtype)
    weights = dict(model.module.named_parameters())
    trained = [weight for weight in weights.values() if weight.requires_grad]
    optimizer, bank = build_optimizer(model.module, config.optimizer), make_bank(model.module)
    for weight in trained:
        weight.grad = torch.empty_like(weight)
    optimizer.step()
    # of adapters the gauge's initial policy is the base, and a model with a checkpoint reads it there
    wanted = outside_points(config) or (config.gauge.every and not model.resizable)
    measured = [INITIAL] if wanted and config.tuning.mode == "full" else []
    for name in [*build.copies_of(config), *measured]:
        bank.save(name, decay=0.5)  # a first average is a copy, and asks for no value
    nobody: Any = None
    loop = Loop(model, nobody, nobody, config, optimizer, bank=bank, comm=processes)
    saved = saved_tensors({"loop": loop.state_dict()})
    held: dict[str, list[Tensor]] = {
        "trained weights": [*trained],
        "frozen weights": [w for name, w in weights.items() if not w.requires_grad and ".lora_" not in name],
        "copies": [tensor for path, tensor in saved.items() if path.startswith("state/loop/bank/")],
        "gradients": [weight.grad for weight in trained if weight.grad is not None],
        "optimizer": [tensor for path, tensor in saved.items() if path.startswith("state/loop/optimizer/")],
        "buffers": list(model.module.buffers()),
    }
    return Contents(held, saved)


def check_layout(config: RecipeConfig) -> None:
    """Refuse a recipe whose `parallel.sequence` cannot divide a video of its model.

    The reason can be that the tokens of a video or the heads of the network do not divide by it.
    """
    layout = config.parallel
    if layout.sequence == 1:  # weights are cut by rows, which always works
        return
    model = build.outline_model(config)
    with pretend(layout.processes, layout.sequence, layout.replicate) as processes:
        if processes.sp:
            build.share_video(model, config, processes.sp)
