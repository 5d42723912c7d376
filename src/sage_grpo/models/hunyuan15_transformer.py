"""HunyuanVideo-1.5's transformer without padding: its attention never sees a mask, and no pass waits for the device.

The library pads texts and image to 1,985 tokens, computes with all of them and masks the padding in attention. Here
only real tokens take part. Tokens carry no position, so leaving out the padding changes nothing but rounding.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sage_grpo.models.ragged_text import COUNT, filled, runs

KINDS = {"text": 0, "glyphs": 1, "image": 2}  # rows of the network's embedding of kinds


def install(network: Any) -> None:
    """Replace the network's forward pass: with `words` it computes without padding, otherwise as the library does."""
    stock = network.forward

    def forward(*args: Any, words: Mapping[str, Any] | None = None, **named: Any) -> Any:
        return stock(*args, **named) if words is None else forward_unpadded(network, words, *args)

    network.forward = forward


def forward_unpadded(network: Any, words: Mapping[str, Any], x: Tensor, timestep: Tensor) -> Tensor:
    """Return the velocity (B, C, F, H, W) by the library's steps, with the tokens of `text_tokens`."""
    rotary = network.rope(x)
    # The library rounds the timestep itself to the dtype of the latents; the original rounds its sinusoids.
    time = network.time_embed.timestep_embedder(network.time_embed.time_proj(timestep).to(x.dtype))
    video = network.x_embedder(x)
    text, sizes = text_tokens(network, timestep, words)
    again = torch.is_grad_enabled() and network.gradient_checkpointing
    for block in network.transformer_blocks:
        ask = partial(network._gradient_checkpointing_func, block) if again else block
        video, text = ask(video, text, time, sizes, rotary)
    out: Tensor = network.proj_out(network.norm_out(video, time))
    patch = (network.config.patch_size_t, network.config.patch_size, network.config.patch_size)
    grid = [size // step for size, step in zip(x.shape[2:], patch, strict=True)]
    out = out.reshape(len(x), *grid, -1, *patch)
    return out.permute(0, 4, 1, 5, 2, 6, 3, 7).flatten(6, 7).flatten(4, 5).flatten(2, 3)


def text_tokens(network: Any, timestep: Tensor, words: Mapping[str, Any]) -> tuple[Tensor, tuple[Tensor, ...] | None]:
    """Return the tokens (B, tokens, width) besides the video's, and the size of each run of samples with equal lengths.

    A size is an empty tensor (rows, tokens, 0): a compiled block takes shapes of tensors as they come, but would be
    compiled again for each number. Sizes are None if all samples are alike, except for compiled blocks. These always
    get sizes, so that equal lengths are no graph of their own.
    """
    graphs = compiled(network)
    if not graphs and "text" + COUNT not in words:
        return embedded(network, timestep, words), None
    texts = [name for name in KINDS if name in words]
    counts = {name: _counts(words, name, len(timestep)) for name in texts}
    parts, alike = [], list(zip(*counts.values(), strict=True))
    for rows in regular(alike) if graphs else runs(alike):
        # copies: a part of a larger tensor has strides that a block would be compiled for
        cut = {name: words[name][rows, : counts[name][rows.start]] for name in texts}
        own = {name: tokens.clone(memory_format=torch.contiguous_format) for name, tokens in cut.items()}
        parts.append(embedded(network, timestep[rows], own))
    # With one more no text is the longest: which one is would be a graph of its own.
    room = max(part.shape[1] for part in parts) + graphs
    sizes = tuple(varying(network, part.new_empty(*part.shape[:2], 0)) for part in parts)
    return varying(network, torch.cat([filled(part, room) for part in parts])), sizes


def _counts(words: Mapping[str, Any], name: str, samples: int) -> list[int]:
    """Return the number of tokens of each sample's text.

    A mixed batch has counts, which are numbers or a tensor. In any other batch all tokens count.
    """
    counts = words.get(name + COUNT)
    return [words[name].shape[1]] * samples if counts is None else [int(count) for count in counts]


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


def regular(lengths: Sequence[object]) -> list[slice]:
    """Return both halves if each is uniform, as branches of guidance are, or else each sample alone, as slices."""
    half = len(lengths) // 2
    halves = [slice(0, half), slice(half, len(lengths))]
    if all(len(set(lengths[rows])) == 1 for rows in halves):
        return halves
    return [slice(i, i + 1) for i in range(len(lengths))]


def compiled(network: Any) -> bool:
    found: bool = network.transformer_blocks[0]._compiled_call_impl is not None
    return found


def varying(network: Any, tokens: Tensor) -> Tensor:
    """Return `tokens`, with their number marked as varying if blocks are compiled.

    The blocks are then compiled once for all lengths of a text, not once for each.
    """
    if compiled(network):
        torch._dynamo.mark_dynamic(tokens, 1)
    return tokens
