"""Processes that share one video, in models of diffusers: by the library's plans, and by a joint attention of ours."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from diffusers import ContextParallelConfig, ParallelConfig
from diffusers.hooks import apply_context_parallel
from diffusers.models._modeling_parallel import ContextParallelInput
from diffusers.models.attention_dispatch import AttentionBackendName, _AttentionBackendRegistry, dispatch_attention_fn
from diffusers.models.embeddings import apply_rotary_emb
from diffusers.models.transformers.transformer_hunyuan_video15 import HunyuanVideo15AttnProcessor2_0
from torch import Tensor, nn
from torch.nn.functional import pad

from sage_grpo.core.protocols import SequenceParallel
from sage_grpo.models.errors import ModelError


def cut(dim: int, of: int, output: bool = False) -> ContextParallelInput:
    """Return an entry of a plan: cut this argument along `dim` if it has `of` dimensions.

    With `output`, it is this output that is cut.
    """
    return ContextParallelInput(split_dim=dim, expected_dims=of, split_output=output)


def check_sharing(size: int, heads: int, tokens: int | None = None) -> None:
    """Refuse a number of processes per video that does not divide the heads, or the tokens where they are given.

    The library needs divisible tokens for some models.
    """
    counts = [heads] if tokens is None else [heads, tokens]
    if any(count % size for count in counts):
        fits = max(n for n in range(1, size) if not any(count % n for count in counts))
        what = f"{heads} heads" + (f" and {tokens} tokens of a video" if tokens is not None else "")
        raise ModelError(f"parallel.sequence={size} does not divide the model's {what}; use parallel.sequence={fits}")


def share_by_plan(network: Any, attentions: Iterable[Any], sp: SequenceParallel, plan: Mapping[str, Any]) -> None:
    """Share a video by diffusers' context parallelism, which cuts and gathers as `plan` says.

    Inside the `attentions`, the processes exchange keys and values or heads.

    Raises:
        ModelError: The network is compiled, or its attention backend cannot share a video.
    """
    if any(layer._compiled_call_impl is not None for layer in network.modules()):
        raise ModelError(
            "tuning.compile: this model's blocks cannot be compiled while processes share a video, for diffusers hooks "
            "into them; leave tuning.compile out, or use parallel.sequence=1"
        )
    own = ContextParallelConfig(ring_degree=sp.ring, ulysses_degree=sp.ulysses, mesh=sp.mesh)
    config = ParallelConfig(context_parallel_config=own)
    config.setup(sp.rank, sp.mesh.size(), sp.device, mesh=sp.mesh)
    for attention in attentions:
        name = attention.processor._attention_backend
        backend = AttentionBackendName(name) if name else _AttentionBackendRegistry.get_active_backend()[0]
        if not _AttentionBackendRegistry._is_context_parallel_available(backend):
            known = ", ".join(sorted(_AttentionBackendRegistry._supports_context_parallel))
            raise ModelError(f"tuning.attention={name!r} cannot share a video (parallel.sequence); use one of {known}")
        attention.processor._parallel_config = config
    apply_context_parallel(network, own, dict(plan))

    def whole_gradient(module: nn.Module, inputs: Any, outputs: tuple[Tensor, ...]) -> None:
        # The library's gather hands each process only its own part of the gradient, as if the others' losses were
        # nothing. Processes take the mean of their gradients, so the parts must count `size` times.
        if outputs[0].requires_grad:
            outputs[0].register_hook(lambda gradient: gradient * sp.size)  # type: ignore[no-untyped-call]

    network.register_forward_hook(whole_gradient)


class JointAttention:
    """Attention over video and text together, for one process or for several that share the video.

    No mask is passed on, because several kernels do not support one, or are slow with it. Samples whose texts differ in
    length attend one after the other; neighbours of equal length attend together. A mask is only given by the library's
    own pipeline, and is left to the library.
    """

    _attention_backend: Any = None

    def __init__(self, sp: SequenceParallel | None = None) -> None:
        self.sp = sp

    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor,
        attention_mask: Tensor | tuple[Tensor, ...] | None,
        image_rotary_emb: tuple[Tensor, Tensor],
    ) -> tuple[Tensor, Tensor]:
        if isinstance(attention_mask, Tensor):
            stock: tuple[Tensor, Tensor] = HunyuanVideo15AttnProcessor2_0()(
                attn, hidden_states, encoder_hidden_states, attention_mask, image_rotary_emb
            )
            return stock

        def heads(x: Tensor) -> Tensor:
            return x.view(*x.shape[:2], attn.heads, -1)

        sp, text = self.sp, encoder_hidden_states
        value = heads(attn.to_v(hidden_states))
        # Under autocast the norms compute in float32. Attention casts to the type of `value`, so messages may as well.
        query, key = (
            apply_rotary_emb(norm(heads(project(hidden_states))), image_rotary_emb, sequence_dim=1).to(value.dtype)
            for project, norm in ((attn.to_q, attn.norm_q), (attn.to_k, attn.norm_k))
        )
        video: tuple[Tensor, ...] = (query, key, value)
        words: tuple[Tensor, ...] = (
            attn.norm_added_q(heads(attn.add_q_proj(text))),
            attn.norm_added_k(heads(attn.add_k_proj(text))),
            heads(attn.add_v_proj(text)),
        )
        if sp:
            video, words = tuple(map(sp.seq_to_head, video)), tuple(map(sp.local_heads, words))
        out = self._attend([torch.cat(pair, dim=1) for pair in zip(video, words, strict=True)], attention_mask, text)
        tokens = video[0].shape[1]
        video_out, text_out = out[:, :tokens], out[:, tokens:]
        if sp:
            video_out, text_out = sp.head_to_seq(video_out), sp.gather_heads(text_out)
        kind = hidden_states.dtype
        project, dropout = attn.to_out
        return dropout(project(video_out.flatten(2).to(kind))), attn.to_add_out(text_out.flatten(2).to(kind))

    def _attend(self, joint: list[Tensor], sizes: tuple[Tensor, ...] | None, text: Tensor) -> Tensor:
        """Return the attention over all tokens, with the parts of `joint` as query, key and value.

        `sizes` are empty tensors (rows, tokens, 0), one for each run of neighbours whose texts have equal lengths.
        """
        if sizes is None:
            out: Tensor = dispatch_attention_fn(*joint, backend=self._attention_backend)
            return out
        parts, tokens, rows = [], joint[0].shape[1], [len(size) for size in sizes]
        for size, mine in zip(sizes, zip(*(x.split_with_sizes(rows) for x in joint), strict=True), strict=True):
            missing = text.shape[1] - size.shape[1]
            part = dispatch_attention_fn(*(x[:, : tokens - missing] for x in mine), backend=self._attention_backend)
            parts.append(pad(part, (0, 0, 0, 0, 0, missing)))
        return torch.cat(parts)
