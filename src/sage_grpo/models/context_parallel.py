"""Sequence parallelism in diffusers models: processes share a video by diffusers' plans or our joint attention."""

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

from sage_grpo.core.comm import SequenceParallel
from sage_grpo.models.errors import ModelError


def cut(dim: int, of: int, output: bool = False) -> ContextParallelInput:
    """Return an entry for diffusers' context-parallel plans: cut a tensor along `dim`, into one part per process.

    The tensor must have `of` dimensions. It is an argument of the module that the plan names or, with `output`, one of
    the module's outputs.
    """
    return ContextParallelInput(split_dim=dim, expected_dims=of, split_output=output)


def check_sharing(size: int, heads: int, tokens: int | None = None) -> None:
    """Refuse a number of processes per video that does not divide the attention heads, or the tokens if given.

    Args:
        size: Processes that share a video.
        heads: Attention heads of the network.
        tokens: Tokens of a video, for networks whose tokens diffusers can only cut into equal parts.
    """
    counts = [heads] if tokens is None else [heads, tokens]
    if any(count % size for count in counts):
        fits = max(n for n in range(1, size) if not any(count % n for count in counts))
        what = f"{heads} heads" + (f" and {tokens} tokens of a video" if tokens is not None else "")
        raise ModelError(f"parallel.sequence={size} does not divide the model's {what}; use parallel.sequence={fits}")


def share_by_plan(network: Any, attentions: Iterable[Any], sp: SequenceParallel, plan: Mapping[str, Any]) -> None:
    """Prepare the network for processes that share a video, by diffusers' context parallelism.

    The plan says at which modules the video's tokens are cut and gathered. Inside the `attentions`, the processes
    exchange keys and values or heads.

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
    """A diffusers attention processor over the tokens of video and text together.

    Several processes may share the video. The attention is computed without a mask, because several kernels do not
    support a mask, or are slow with it. Samples whose texts differ in length attend one after the other; neighbours of
    equal length attend together. Only diffusers' own pipeline passes a mask. Such a call is left to diffusers'
    processor.
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
        query, key = (
            apply_rotary_emb(norm(heads(project(hidden_states))), image_rotary_emb, sequence_dim=1)
            for project, norm in ((attn.to_q, attn.norm_q), (attn.to_k, attn.norm_k))
        )
        video: tuple[Tensor, ...] = (query, key, heads(attn.to_v(hidden_states)))
        words: tuple[Tensor, ...] = (
            attn.norm_added_q(heads(attn.add_q_proj(text))),
            attn.norm_added_k(heads(attn.add_k_proj(text))),
            heads(attn.add_v_proj(text)),
        )
        if sp:
            # Under autocast the norms compute in float32. Attention casts to the value's type, so messages may too.
            sent = (x.to(video[-1].dtype) for x in video)
            video, words = tuple(map(sp.seq_to_head, sent)), tuple(map(sp.local_heads, words))
        out = self._attend([torch.cat(pair, dim=1) for pair in zip(video, words, strict=True)], attention_mask, text)
        tokens = video[0].shape[1]
        video_out, text_out = out[:, :tokens], out[:, tokens:]
        if sp:
            video_out, text_out = sp.head_to_seq(video_out), sp.gather_heads(text_out)
        kind = hidden_states.dtype
        project, dropout = attn.to_out
        return dropout(project(video_out.flatten(2).to(kind))), attn.to_add_out(text_out.flatten(2).to(kind))

    def _attend(self, joint: list[Tensor], sizes: tuple[Tensor, ...] | None, text: Tensor) -> Tensor:
        """Return the attention over all tokens. `joint` is query, key and value, each (B, tokens, heads, head size).

        `sizes` has an empty tensor (rows, text tokens, 0) for each run of neighbouring samples whose texts have equal
        lengths. It is None if all samples have the same length.
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
