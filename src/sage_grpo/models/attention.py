"""Attention computed by one of diffusers' backends, so that it can be timed and compared with torch's kernels."""

from torch import Tensor


def attend(backend: str, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return attention computed by the diffusers backend of the given name, such as `flash`.

    Query, key, value and the result are (B, heads, tokens, head size).

    Raises:
        RuntimeError: The backend is not installed, or does not take these inputs.
    """
    from diffusers.models.attention_dispatch import (  # noqa: PLC0415 - diffusers is an extra
        AttentionBackendName,
        dispatch_attention_fn,
    )

    rows = (x.transpose(1, 2) for x in (query, key, value))
    try:
        out: Tensor = dispatch_attention_fn(*rows, attn_mask=mask, backend=AttentionBackendName(backend))
    except (TypeError, ValueError, ImportError) as error:  # diffusers calls what it could not import
        raise RuntimeError(f"{backend} is not installed or does not take this: {error}") from error
    return out.transpose(1, 2)
