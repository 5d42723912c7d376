"""A forward pass of HunyuanVideo-1.5's transformer that leaves out the padding of text and image tokens.

Diffusers pads texts and image to 1,985 tokens, computes with all of them and masks the padding in attention. Here only
real tokens take part, so attention needs no mask and no pass waits for the device. Text and image tokens carry no
position, so leaving out the padding changes nothing but rounding.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sage_grpo.models.ragged_text import COUNT, filled, runs

KINDS = {"text": 0, "glyphs": 1, "image": 2}  # rows of the network's embedding of kinds


def install(network: Any) -> None:
    """Replace `network.forward`.

    Calls with `words` compute without padding, all others run diffusers' own forward pass.
    """
    stock = network.forward

    def forward(*args: Any, words: Mapping[str, Any] | None = None, **named: Any) -> Any:
        return stock(*args, **named) if words is None else forward_unpadded(network, words, *args)

    network.forward = forward


def forward_unpadded(network: Any, words: Mapping[str, Any], x: Tensor, timestep: Tensor) -> Tensor:
    """Return the velocity (B, C, F, H, W), computed as diffusers does but without padding tokens.

    Args:
        words: The embeddings `text`, `glyphs` and perhaps `image`, (B, tokens, width), and token counts in a mixed
            batch.
        x: Latents and condition channels, (B, 2C + 1, F, H, W).
        timestep: (B,).
    """
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
    """Return the tokens (B, tokens, width) of image, glyphs and text, and the size of each run of samples.

    A run is a group of neighbouring samples whose texts have equal lengths. Its size is an empty tensor (rows, tokens,
    0), because compiled blocks would be compiled again for each new number, but not for each new shape. Without
    compiled blocks, sizes are None if all samples have equal lengths. Compiled blocks always get sizes, so that equal
    lengths need no second graph.
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
    """Return the number of real tokens of each sample in `words[name]`.

    If the samples differ, `words` holds the counts as numbers or a tensor. Otherwise no token is padding.
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
    """Return slices of a batch for compiled blocks: two halves, or every sample alone.

    The batch is halved if the lengths within each half are equal, as in the two branches of guidance of one prompt.
    """
    half = len(lengths) // 2
    halves = [slice(0, half), slice(half, len(lengths))]
    if all(len(set(lengths[rows])) == 1 for rows in halves):
        return halves
    return [slice(i, i + 1) for i in range(len(lengths))]


def compiled(network: Any) -> bool:
    found: bool = network.transformer_blocks[0]._compiled_call_impl is not None
    return found


def varying(network: Any, tokens: Tensor) -> Tensor:
    """Return `tokens` (B, tokens, …), with axis 1 marked as dynamic if the network's blocks are compiled.

    The blocks are then compiled once for all lengths of a text, not once for each length.
    """
    if compiled(network):
        torch._dynamo.mark_dynamic(tokens, 1)
    return tokens
