"""The costs of a recipe's network passes at full size on one process of its layout, from tensors without values.

Networks are stacks of equal blocks, so work, messages and memory grow by the same amount with every block. So two
shallow networks are measured, and the costs at full depth are on a straight line through theirs. A test compares this
with a measurement of all blocks.
"""

from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from sage_grpo.config import RecipeConfig
from sage_grpo.core.protocols import Prompt
from sage_grpo.core.renoise import unguided
from sage_grpo.core.video_model import VideoModel, networks
from sage_grpo.distributed.fake_group import pretend
from sage_grpo.distributed.shard import shard
from sage_grpo.preflight.plan.fake_tensors import imagine_weights, uncollected, without_values
from sage_grpo.preflight.plan.operations import Kind, Operation, OperationCounter
from sage_grpo.training import build

SHALLOW = (4, 6)  # with fewer blocks the peak is elsewhere


@dataclass(frozen=True)
class Cost:
    """The cost of one pass on one process: its operations, bytes of messages, and bytes of memory."""

    operations: dict[Operation, float]  # how many there are of each
    sent: dict[str, float]  # bytes of messages by purpose
    messages: dict[str, float]
    memory: float  # newly held at a time, beyond what is held between passes
    largest: int = 0  # elements that a convolution reads or writes
    attention: tuple[int, ...] = ()  # of the largest query: batch, heads, tokens, width

    @property
    def flops(self) -> float:
        return sum(n * operation.flops for operation, n in self.operations.items())

    def flops_of(self, kind: Kind) -> float:
        return sum(n * operation.flops for operation, n in self.operations.items() if operation.kind == kind)


@dataclass(frozen=True)
class Probe:
    tokens: int  # of one video, without those of its text
    forward: Cost  # of a batch without gradient, all branches of guidance
    training: Cost  # of what shares a replay pass: forward and backward, besides gradients that are already there


def line(shallow: Cost, deeper: Cost, blocks: int) -> Cost:
    """Return the cost of a network of `blocks` blocks, on a straight line through the costs of two shallow ones.

    The shallow networks have the numbers of blocks in `SHALLOW`.
    """
    few, more = SHALLOW
    further = (blocks - more) / (more - few)

    def along(a: Any, b: Any) -> Any:
        return {key: b.get(key, 0) + further * (b.get(key, 0) - a.get(key, 0)) for key in {*a, *b}}

    return Cost(
        along(shallow.operations, deeper.operations),
        along(shallow.sent, deeper.sent),
        along(shallow.messages, deeper.messages),
        deeper.memory + further * (deeper.memory - shallow.memory),
        attention=deeper.attention,
    )


def stacks(model: VideoModel) -> list[tuple[nn.Module, str]]:
    """Return each network of a model with the name of its submodule of repeated blocks.

    The list is empty if `model.blocks` is None.
    """
    return [(part, model.blocks) for part in networks(model.module).values()] if model.blocks else []


def watched(act: Callable[[], Any]) -> Cost:
    with OperationCounter() as watch, uncollected():
        act()
    return Cost(
        dict(watch.operations), dict(watch.sent), dict(watch.messages), watch.peak, watch.largest, watch.attention
    )


def passes(model: VideoModel, config: RecipeConfig, depth: int | None) -> tuple[int, Cost, Cost]:
    """Return the number of tokens per video, and the costs of a forward pass and a training pass of one batch.

    Only the last `depth` blocks are run; None for all. The model cannot be used afterwards, because its blocks and
    weights are replaced.
    """
    layout = config.parallel
    shape, policy = model.latent_shape(Prompt("")), config.policy
    example = None if model.blank_condition(1) else model.encode(config_prompts(config, 1))
    if depth is not None:
        for part, name in stacks(model):
            parent, _, last = name.rpartition(".")
            blocks = list(part.get_submodule(name).children())
            # those at the end, for the last one may differ: it has frozen parts
            setattr(part.get_submodule(parent), last, nn.ModuleList(blocks[-depth:]))
    measured: Counter[str] = Counter()

    def count_tokens(block: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        measured["tokens"] = (inputs[0] if inputs else named["hidden_states"]).shape[1]

    first = model.shard_blocks[:1]  # none: a network of one piece, of whose tokens nothing is known
    hooks = [block.register_forward_pre_hook(count_tokens, with_kwargs=True) for block in first]
    together = pretend(layout.processes, layout.sequence, layout.replicate) if layout.processes > 1 else nullcontext()
    with together as processes, without_values():
        imagine_weights(model.module)
        if processes and processes.sp:
            model.share_sequence(processes.sp)
        if processes:
            shard(model, processes.weights_mesh, model.autocast_dtype)

        def inputs(rows: int) -> tuple[Any, ...]:
            x = torch.zeros(rows, *shape)
            if example is None:
                return x, x.new_ones(rows), model.blank_condition(rows)
            condition = {name: torch.zeros(rows, *v.shape[1:], dtype=v.dtype) for name, v in example.items()}
            return x, x.new_ones(rows), condition

        rolled, replayed = inputs(policy.batch_size), inputs(policy.batch_size * policy.replay_timesteps)

        def forward() -> None:
            with torch.no_grad():
                model.velocity(*rolled)

        def train() -> None:
            with unguided(model) if policy.points else nullcontext():  # as the loop evaluates renoised videos
                velocity = model.velocity(*replayed)
            velocity.float().square().mean().backward()  # type: ignore[no-untyped-call]

        for weight in model.module.parameters():
            weight.grad = torch.zeros_like(weight) if weight.requires_grad else None  # of batches before this one
        costs = watched(forward), watched(train)
        for hook in hooks:
            hook.remove()
    return measured["tokens"], *costs


def config_prompts(config: RecipeConfig, count: int) -> list[Prompt]:
    return list(build.build_prompts(config)(0, count))


def probe(config: RecipeConfig) -> Probe:
    model = build.outline_model(config)
    blocks = [len(list(part.get_submodule(name).children())) for part, name in stacks(model)]
    if not blocks or max(blocks) <= SHALLOW[1]:
        tokens, forward, training = passes(model, config, None)
        return Probe(tokens, forward, training)
    tokens, *few = passes(model, config, SHALLOW[0])
    _, *more = passes(build.outline_model(config), config, SHALLOW[1])
    forward, training = (line(a, b, max(blocks)) for a, b in zip(few, more, strict=True))
    return Probe(tokens, forward, training)


def decoding(config: RecipeConfig) -> Cost | None:
    """Return the cost of decoding a batch of videos, with the memory of their frames.

    It is None for a model without a pipeline.
    """
    model = build.outline_model(config)
    if model.pipe is None:
        return None
    with without_values():
        imagine_weights(model.pipe.vae)
        x0 = torch.zeros(config.policy.batch_size, *model.latent_shape(Prompt("")))
        return watched(lambda: model.decode(x0))
