"""HunyuanVideo-1.5's transformer without padding: its attention never sees a mask, and no pass waits for the device.

The library fills texts and image up to 1,985 tokens, computes with all of them and masks them in attention. Here only
tokens that are there take part. They carry no position, so leaving the others out changes nothing but rounding.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sage_grpo.models.texts import COUNT, filled, runs

KINDS = {"text": 0, "glyphs": 1, "image": 2}  # rows of the network's embedding of kinds


def install(network: Any) -> None:
    """Asked with `words` the network computes without padding; asked as the library asks, it is the library's own."""
    stock = network.forward

    def forward(*args: Any, words: Mapping[str, Any] | None = None, **named: Any) -> Any:
        return stock(*args, **named) if words is None else unpadded(network, words, *args)

    network.forward = forward


def unpadded(network: Any, words: Mapping[str, Any], x: Tensor, timestep: Tensor) -> Tensor:
    """The steps of the library's forward pass, with the tokens of `text_tokens`."""
    rotary = network.rope(x)
    # The library rounds the timestep itself to the dtype of the latents; the original rounds its sinusoids.
    time = network.time_embed.timestep_embedder(network.time_embed.time_proj(timestep).to(x.dtype))
    video = network.x_embedder(x)
    text, lengths = text_tokens(network, timestep, words)
    again = torch.is_grad_enabled() and network.gradient_checkpointing
    for block in network.transformer_blocks:
        ask = partial(network._gradient_checkpointing_func, block) if again else block
        video, text = ask(video, text, time, lengths, rotary)
    out: Tensor = network.proj_out(network.norm_out(video, time))
    patch = (network.config.patch_size_t, network.config.patch_size, network.config.patch_size)
    grid = [size // step for size, step in zip(x.shape[2:], patch, strict=True)]
    out = out.reshape(len(x), *grid, -1, *patch)
    return out.permute(0, 4, 1, 5, 2, 6, 3, 7).flatten(6, 7).flatten(4, 5).flatten(2, 3)


def text_tokens(network: Any, timestep: Tensor, words: Mapping[str, Any]) -> tuple[Tensor, tuple[int, ...] | None]:
    """Tokens beside the video's; and where samples differ, how many of them each has."""
    if "text" + COUNT not in words:
        return varying(network, embedded(network, timestep, words)), None
    counts = {name: words[name + COUNT] for name in KINDS if name + COUNT in words}
    parts = []
    for rows in runs(list(zip(*counts.values(), strict=True))):
        mine = {name: words[name][rows] for name in KINDS if name in words}
        mine |= {name: mine[name][:, : count[rows.start]] for name, count in counts.items()}
        parts.append(embedded(network, timestep[rows], mine))
    lengths = tuple(part.shape[1] for part in parts for _ in range(len(part)))
    return varying(network, torch.cat([filled(part, max(lengths)) for part in parts])), lengths


def embedded(network: Any, timestep: Tensor, words: Mapping[str, Tensor]) -> Tensor:
    parts = {"glyphs": network.context_embedder_2(words["glyphs"])}
    if "image" in words:
        parts = {"image": network.image_embedder(words["image"])} | parts
    parts["text"] = network.context_embedder(varying(network, words["text"]), timestep)
    kinds = network.cond_type_embed
    return torch.cat(
        [part + kinds(torch.full(part.shape[:2], KINDS[name], device=part.device)) for name, part in parts.items()],
        dim=1,
    )


def varying(network: Any, tokens: Tensor) -> Tensor:
    """Compiled blocks are compiled once for all lengths of a text, not once for each."""
    if network.transformer_blocks[0]._compiled_call_impl is not None:
        torch._dynamo.mark_dynamic(tokens, 1)
    return tokens
