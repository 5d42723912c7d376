"""Functions that make networks without weights at a checkpoint's sizes, and one that reads the picture of a prompt."""

import io
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import diffusers
import torch
from PIL import Image

from sage_grpo.core.protocols import Prompt
from sage_grpo.models.errors import ModelError

Precisions = Mapping[str, torch.dtype]  # by component; `default` for all others
MEGAPIXELS = 50  # of a first frame; a small file can stand for a picture that fills the memory


def precisions(adapter: Any, dtype: torch.dtype, frozen: torch.dtype | None) -> Precisions:
    """Return the precision of each component by name: `dtype` for the networks to be trained, `frozen` for all others.

    If `frozen` is None, the others are in `dtype` too. Components in `float32_parts`, which lose quality in half
    precision, are always float32.
    """
    kinds = {"default": frozen or dtype} | dict.fromkeys(adapter.denoisers, dtype)
    return kinds | dict.fromkeys(adapter.float32_parts, torch.float32)


def empty_parts(pipeline: Any, folder: str, names: Sequence[str], kinds: Precisions) -> dict[str, Any]:
    """Return the named networks of the checkpoint in `folder`, without weights.

    Sizes and precisions are those that loading the checkpoint would give.
    """
    from accelerate import init_empty_weights  # noqa: PLC0415 - only for several processes

    index, parts = pipeline.load_config(folder), {}
    for name in names:
        library, kind = index.get(name) or (None, None)
        if library and kind:
            home = diffusers if library == "diffusers" else getattr(diffusers.pipelines, library)
            network = getattr(home, kind)
            with init_empty_weights(include_buffers=False):
                part = network.from_config(network.load_config(folder, subfolder=name))
            parts[name] = _as_loaded(part, _precision(kinds, name))
    return parts


def default_parts(
    pipe: Any, names: Sequence[str], kinds: Precisions, sizes: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the named networks of a pipeline without weights, at the default sizes of their classes.

    Args:
        sizes: Sizes that differ from the defaults, by network and setting.
    """
    from accelerate import init_empty_weights  # noqa: PLC0415 - only for several processes

    classes = {name: type(part) for name in names if (part := getattr(pipe, name, None)) is not None}
    with init_empty_weights(include_buffers=False):
        parts = {name: network(**sizes.get(name, {})) for name, network in classes.items()}
    return {name: _as_loaded(part, _precision(kinds, name)) for name, part in parts.items()}


def empty_encoders(
    pipe: Any, folder: str | None, names: Sequence[str], kinds: Precisions, sizes: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Return encoders without weights, of the same classes as the named ones of `pipe`.

    Sizes are those of the checkpoint in `folder`, or those in `sizes` if `folder` is None. An encoder whose sizes are
    in neither is left out.
    """
    from accelerate import init_empty_weights  # noqa: PLC0415 - only for a plan

    parts = {}
    for name in names:
        if (small := getattr(pipe, name, None)) is not None and (folder or name in sizes):
            kind = type(small.config)
            config = kind.from_pretrained(folder, subfolder=name) if folder else kind(**sizes[name])
            with init_empty_weights():
                parts[name] = type(small)(config).to(_precision(kinds, name))
            parts[name].tie_weights()  # what is tied was made twice, and takes room once
    return parts


def _precision(kinds: Precisions, name: str) -> torch.dtype:
    return kinds.get(name, kinds["default"])


def _as_loaded(part: Any, dtype: torch.dtype) -> Any:
    float32_modules = part._keep_in_fp32_modules or []
    for path, parameter in part.named_parameters():
        if not any(word in path.split(".") for word in float32_modules):
            parameter.data = parameter.data.to(dtype)
    return part


def full_size(
    pipe: Any,
    path: str | None,
    names: Sequence[str],
    kinds: Precisions,
    sizes: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """Return the named components of a pipeline of the class of `pipe`, at full size but without weights.

    If `path` is a folder, sizes are read from its checkpoint. Otherwise they are the defaults of the classes, or those
    in `sizes`.
    """
    folder = path if path and Path(path).is_dir() else None
    if folder and not (Path(folder) / "model_index.json").is_file():
        raise ModelError(f"model.path: {folder} is not a checkpoint: it has no model_index.json")
    networks = [name for name in names if isinstance(getattr(pipe, name, None), diffusers.ModelMixin)]
    encoders = [name for name in names if name not in networks]
    parts = empty_parts(type(pipe), folder, networks, kinds) if folder else default_parts(pipe, networks, kinds, sizes)
    return parts | empty_encoders(pipe, folder, encoders, kinds, sizes)


def read_image(prompt: Prompt) -> Image.Image:
    """Return the picture in a prompt's `image` column, converted to RGB.

    The column holds a picture, a path, or encoded bytes as datasets store them. It is never a URL.

    Raises:
        ModelError: There is no picture, or it cannot be read, or it has more than `MEGAPIXELS` megapixels.
    """
    value = prompt.columns.get("image")
    if isinstance(value, Mapping):
        value = io.BytesIO(value["bytes"]) if value.get("bytes") else value.get("path")
    if value is None or value == "":
        raise ModelError(f"image-to-video needs a column `image`; the prompt {prompt.text[:60]!r} has none")
    if isinstance(value, Image.Image):
        return value.convert("RGB")
    try:
        with warnings.catch_warnings(), Image.open(value) as image:  # reads the header only
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # our limit is lower
            if (pixels := image.width * image.height / 1e6) > MEGAPIXELS:
                raise ModelError(
                    f"image of the prompt {prompt.text[:60]!r} has {pixels:,.0f} megapixels; scale it to at most "
                    f"{MEGAPIXELS}"
                )
            return image.convert("RGB")
    except (OSError, Image.DecompressionBombError) as error:
        raise ModelError(f"image of the prompt {prompt.text[:60]!r} cannot be read: {error}") from error
