"""Export of trained weights: adapters for diffusers and peft, or a whole checkpoint with them merged in."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from sage_grpo.core.video_model import VideoModel, networks
from sage_grpo.weights.merge import merge_adapters
from sage_grpo.weights.parts import TuningError, has_adapters, kept_in_float32

NOT_ALONE = "its adapters stay in the run, which `sage-grpo sample` and `eval` open"
FILE = "pytorch_lora_weights.safetensors"  # where diffusers looks


def export(model: VideoModel, folder: Path, *, merge: bool = False, dtype: torch.dtype | None = None) -> dict[str, Any]:
    """Write the trained weights into `folder`: the adapters alone, or the whole model if it has none or `merge` is set.

    Merged layers are float32 unless `dtype` says otherwise, because half precision would lose most of a small update.

    Returns:
        `kind`: "lora" if adapters alone were written, else "full". `update`: what rounding leaves of the merged update,
        as `merge_adapters` returns it; None if nothing was merged.
    """
    written: dict[str, Any] = {"kind": "full", "update": None}
    if has_adapters(model.module) and not merge:
        save_adapters(model, folder, dtype)
        return written | {"kind": "lora"}
    if model.min_sigma:
        raise TuningError(
            f"the adapters act at noise levels from {model.min_sigma} (tuning.min_sigma), and merged weights would act "
            f"at all; {'leave --merge out' if savable(model) else NOT_ALONE}"
        )
    if has_adapters(model.module):
        written["update"] = merge_adapters(model.module, dtype or torch.float32)
    if dtype is not None:
        for part in networks(model.module).values():
            round_weights(part, dtype)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(str(folder))
    return written


def savable(model: VideoModel) -> bool:
    """Return whether the model's adapters can be saved alone, because its networks are of diffusers."""
    return all(hasattr(part, "load_lora_adapter") for part in networks(model.module).values())


def round_weights(part: nn.Module, dtype: torch.dtype) -> None:
    """Round the weights of a network to `dtype` in place, as diffusers would load them in this precision.

    Weights that diffusers keeps in float32 stay float32.
    """
    for name, weight in part.state_dict(keep_vars=True).items():
        if weight.is_floating_point():
            weight.data = weight.data.to(torch.float32 if kept_in_float32(part, name) else dtype)


def save_adapters(model: VideoModel, folder: Path, dtype: torch.dtype | None) -> None:
    parts: dict[str, Any] = dict(networks(model.module))
    for i, (name, part) in enumerate(parts.items()):
        if not hasattr(part, "load_lora_adapter"):  # not of diffusers
            instead = NOT_ALONE if model.min_sigma else "use --merge for the whole model"
            raise TuningError(f"{type(part).__name__} cannot save adapters alone; {instead}")
        mine = {key: w for key, w in part.state_dict().items() if ".lora_" in key and ".default." in key}
        # the prefix and the place of the settings are what diffusers looks for in every pipeline
        tensors = {
            f"transformer.{key.replace('.default.', '.')}": w.detach().cpu().to(dtype or w.dtype).contiguous()
            for key, w in mine.items()
        }
        layers = sorted({key.split(".lora_")[0] for key in mine})  # the wrapped layers themselves, none to exclude
        settings = part.peft_config["default"].to_dict() | {"target_modules": layers, "exclude_modules": None}
        plain = {f"transformer.{k}": sorted(v) if isinstance(v, set) else v for k, v in settings.items()}
        metadata = json.dumps(plain, default=str)
        target = folder / name if i else folder
        target.mkdir(parents=True, exist_ok=True)
        facts = {"min_sigma": str(model.min_sigma)} if model.min_sigma else {}
        save_file(tensors, target / FILE, {"format": "pt", "lora_adapter_metadata": metadata} | facts)


def load_adapters(pipe: Any, folder: Path) -> None:
    """Load the adapters in `folder`, written by `save_adapters`, into a plain diffusers pipeline by its own methods."""
    if not hasattr(pipe, "load_lora_weights"):
        pipe.transformer.load_lora_adapter(str(folder), weight_name=FILE)
        return
    pipe.load_lora_weights(str(folder))
    if (folder / "transformer_2").is_dir():
        pipe.load_lora_weights(str(folder / "transformer_2"), load_into_transformer_2=True)
