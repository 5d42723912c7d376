"""Preparation of a loaded model for training: what is trained, in which precision, with which savings of memory."""

import re
from collections.abc import Mapping, Sequence

import torch
from torch import nn

from sage_grpo.config import TuningConfig
from sage_grpo.core.copy_bank import CopyBank, Fill
from sage_grpo.core.protocols import WeightsBank
from sage_grpo.core.video_model import VideoModel, networks
from sage_grpo.weights.parts import TuningError, has_adapters, require
from sage_grpo.weights.recompute import recompute_all_but_attention

GRAPHS = 32  # with and without gradient, guided, each batch size: more than torch allows by default
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def storage_dtypes(config: TuningConfig) -> dict[str, torch.dtype]:
    """Return the number types to load a checkpoint in: `dtype` for the network, `frozen_dtype` for other components.

    Both are the type of `tuning.precision`, except that `dtype` is float32 if all weights of the network are trained.
    """
    computed = DTYPES[config.precision]
    return {"dtype": torch.float32 if config.mode == "full" else computed, "frozen_dtype": computed}


def prepare(model: VideoModel, config: TuningConfig, seed: int = 0) -> None:
    """Prepare a loaded model for training, in place: adapters or freezing, precision, memory savings, compilation."""
    freeze_or_adapt(model, config, seed)
    set_precision(model, config)
    save_memory(model, config)
    if config.compile:
        compile_blocks(model, config.compile)


def freeze_or_adapt(model: VideoModel, config: TuningConfig, seed: int) -> None:
    """Add LoRA adapters if the recipe wants new ones, else freeze the parameters that never get a gradient.

    Also set the noise level below which adapters do not act, and whether the model evaluates the two branches of
    guidance together or in turn.
    """
    if config.mode == "lora" and not has_adapters(model.module):
        try:
            from sage_grpo.weights.lora_bank import add_lora  # noqa: PLC0415 - peft is an extra
        except ModuleNotFoundError as error:
            raise TuningError(f"tuning.mode: lora needs {error.name}: pip install 'sage-grpo[models]'") from error
        add_lora(model, config, seed)
    else:
        freeze_unused(model)
        model.branches_in_turn = True  # adapters have small gradients, which may wait
    if has_adapters(model.module):
        from sage_grpo.weights.lora_bank import limit_adapters  # noqa: PLC0415 - peft is an extra

        limit_adapters(model, config.min_sigma)
    # a branch without gradient is a pass of its own
    model.branches_together = config.guidance == "together" and model.guidance_gradient == "both"


def set_precision(model: VideoModel, config: TuningConfig) -> None:
    """Make the model compute in bfloat16 if the recipe says so. Weights keep the type in which they were loaded."""
    if config.precision != "float32":
        if not model.autocasts:
            raise TuningError(
                f"tuning.precision: {type(model).__name__} computes in the precision of its weights; use float32"
            )
        model.autocast_dtype = DTYPES[config.precision]


def save_memory(model: VideoModel, config: TuningConfig) -> None:
    """Switch on what the recipe asks for: gradient checkpointing, an attention kernel, decoding in tiles by the VAE."""
    for part in networks(model.module).values():
        if config.gradient_checkpointing:
            enable = require(part, "enable_gradient_checkpointing", "tuning.gradient_checkpointing")
            enable(recompute_all_but_attention) if config.keep_attention else enable()
        if config.attention:
            set_attention(part, config.attention)
    if config.vae_tiling:
        require(model.pipe or model, "vae", "tuning.vae_tiling").enable_tiling()


def compile_blocks(model: VideoModel, backend: str) -> None:
    """Compile the repeated blocks of the model, but nothing else: one small graph serves all blocks.

    A graph break raises an error.
    """
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, GRAPHS)
    for part in networks(model.module).values():
        if getattr(part, "_repeated_blocks", None):
            require(part, "compile_repeated_blocks", "tuning.compile")(fullgraph=True, backend=backend)
        else:
            inside = {id(layer) for layer in part.modules()}
            for block in (block for block in model.shard_blocks if id(block) in inside):
                block.compile(fullgraph=True, backend=backend)


def freeze_unused(model: VideoModel) -> None:
    """Freeze the parameters that never get a gradient (`model.unused`).

    Otherwise they would have no optimizer state, and a checkpoint of the run could not be loaded.
    """
    for name, parameter in model.module.named_parameters():
        if any(re.search(pattern, name) for pattern in model.unused):
            parameter.requires_grad_(False)


def set_attention(part: nn.Module, backend: str) -> None:
    try:
        require(part, "set_attention_backend", "tuning.attention")(backend)
    except (ValueError, RuntimeError, ImportError) as error:
        raise TuningError(
            f"tuning.attention={backend!r} cannot be used here: {error}; leave it out for native"
        ) from error


def reserve_copies(model: VideoModel, names: Sequence[str]) -> None:
    """Add one frozen adapter per copy in `names`, so that these adapters are sharded together with the weights.

    If the model has no adapters, do nothing: plain copies are made when they are needed.
    """
    if has_adapters(model.module):
        from sage_grpo.weights.lora_bank import reserve_adapter  # noqa: PLC0415 - peft is an extra

        for name in names:
            reserve_adapter(model.module, name)


def initial_weights(name: str, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """Return the initial weights of the adapter matrix `name`, which no checkpoint has; see `initial_adapter`."""
    from sage_grpo.weights.lora_bank import initial_adapter  # noqa: PLC0415 - peft is an extra

    return initial_adapter(name, shape, seed)


def make_bank(
    module: nn.Module, copies: torch.device | None = None, lazy_copies: Mapping[str, Fill] | None = None
) -> WeightsBank:
    """Return the bank for copies of the trained weights: a `LoraBank` if the module has adapters, else a `CopyBank`.

    A compiled module gets a `CopyBank` even if it has adapters, because a switch to another adapter would compile the
    blocks again. The copies' values then take turns in the policy's adapter.

    Args:
        module: The network.
        copies: The device on which a `CopyBank` keeps its copies; None for the device of each parameter.
        lazy_copies: Functions that fill in the weights of copies stored elsewhere, by name; not used with adapters.
    """
    compiled = any(layer._compiled_call_impl is not None for layer in module.modules())
    if not compiled and has_adapters(module):
        from sage_grpo.weights.lora_bank import LoraBank  # noqa: PLC0415 - peft is an extra

        return LoraBank(module)
    return CopyBank(module, copies, None if has_adapters(module) else lazy_copies)
