"""The conversion of VideoAlign's released checkpoint into a folder that is read without unpickling anything."""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import Qwen2VLConfig

from sage_grpo.rewards.checkpoints import check_places, new_folder, sha256
from sage_grpo.rewards.errors import RewardError
from sage_grpo.rewards.videoalign import release
from sage_grpo.rewards.videoalign.model import (
    DTYPES,
    FORMAT,
    HEAD,
    NAMES,
    RUBRIC,
    SETTINGS,
    TOKENS,
    WEIGHTS,
    empty_model,
)

NORMALISATION = {"VQ": (3.6757, 2.2476), "MQ": (1.1646, 1.3811), "TA": (2.8105, 2.5121)}  # of the released checkpoint


def convert(
    source: Path,
    target: Path,
    *,
    base: Path | None = None,
    rubric: Path | None = None,
    dtype: str = "float32",
    emit: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Convert VideoAlign's checkpoint into the folder `target`, and return the settings that are written there.

    If anything fails, no folder is left behind.

    Args:
        source: The folder that was downloaded.
        base: A Qwen2-VL folder for what the checkpoint leaves out: sizes, tokenizer, frozen weights.
        rubric: VideoAlign's prompt_template.py or a text file; by default at the checkpoint or two folders above it.
        dtype: Precision of the weights that are written.
        emit: Called with the name of each stage, to show progress.
    """
    if target.exists():
        raise RewardError(f"{target} is there already; choose another folder or remove it")
    if dtype not in DTYPES:
        raise RewardError(f"dtype is {' or '.join(DTYPES)}, not {dtype!r}")
    trained, checkpoint = release.read_settings(source), release.find_checkpoint(source)
    text = release.read_rubric(source, rubric)
    tokenizer = release.find_tokenizer(source, checkpoint, base)
    emit("reading the weights")
    state, files = release.read_weights(checkpoint, base)
    emit("merging the adapters")
    state = merge(state, trained.get("peft_lora_config") or {}, dtype=DTYPES[dtype])
    config = release.network_config(source, checkpoint, base, state)
    head = check_state(state, config)
    limit = config.text_config.vocab_size
    ids = tokenizer.convert_tokens_to_ids(list(TOKENS))
    if any(i is None or i >= limit or i == tokenizer.unk_token_id for i in ids):
        raise RewardError(f"the tokenizer has no {', '.join(TOKENS)} among its first {limit} tokens")
    emit("hashing the source")
    data = trained.get("data_config") or {}
    settings = {
        "format": FORMAT,
        "output_dim": head.shape[0],
        "normalisation": _normalisation(trained.get("inference_config")),
        "rate": float(data.get("fps") or 2.0),
        "max_pixels": int(data.get("max_frame_pixels") or 200_704),
        "source": {path.name: sha256(path) for path in files},
        "rubric": hashlib.sha256(text.encode()).hexdigest(),
    }
    with new_folder(target) as work:
        emit("writing")
        save_file(state, work / WEIGHTS, metadata={"format": "pt"})
        config.save_pretrained(work)
        tokenizer.save_pretrained(work)
        (work / RUBRIC).write_bytes(text.encode())
        (work / SETTINGS).write_text(json.dumps(settings, indent=1))
    return settings


def merge(state: Mapping[str, Tensor], lora: Mapping[str, Any], dtype: torch.dtype) -> dict[str, Tensor]:
    """Return the weights under the names of `Qwen2VLModel`, with each LoRA adapter added to its matrix in float32.

    Args:
        state: Weights and adapters by the names of the release.
        lora: Settings of the adapters, `peft_lora_config` of the release.
        dtype: Precision of the result, except for the head, which is float32.
    """
    plain = {release.plain_name(name): value for name, value in state.items()}
    merged, added = {}, set()
    for name, value in plain.items():
        if ".lora_" in name or name.startswith("lm_head."):
            continue
        layer = name.removesuffix(".weight")
        pair = [f"{layer}.lora_{side}.weight" for side in "AB"]
        down, up = (plain.get(side) for side in pair)
        weight = value.float()
        if down is not None and up is not None:
            if "lora_alpha" not in lora:
                raise RewardError("model_config.json has no peft_lora_config.lora_alpha, the scale of the adapters")
            rank = down.shape[0] ** (0.5 if lora.get("use_rslora") else 1)
            weight = weight + lora["lora_alpha"] / rank * (up.float() @ down.float())
            added |= set(pair)
        target = f"language_{name}" if name.startswith("model.") else name
        merged[target] = weight.to(torch.float32 if name == HEAD else dtype).contiguous()
    lost = [name for name in plain if ".lora_" in name and name not in added]
    if lost:
        raise RewardError(
            f"{len(lost)} adapter tensors have nothing to be added to, e.g. {lost[0]}; "
            "name the frozen weights, a folder of Qwen2-VL-2B-Instruct, with --base"
        )
    return merged


def check_state(state: Mapping[str, Tensor], config: Qwen2VLConfig) -> Tensor:
    """Return the tensor of the head. Refuse a state whose other tensors are not exactly those of the network.

    Raises:
        RewardError: A tensor is missing, unknown or of another shape.
    """
    head = state.get(HEAD)
    width = config.text_config.hidden_size
    if head is None or head.shape[0] not in (1, len(NAMES)) or head.shape[1] != width:
        shape = "none" if head is None else tuple(head.shape)
        raise RewardError(f"{HEAD} should be (1 or {len(NAMES)}, {width}), the checkpoint has {shape}")
    others = {name: value for name, value in state.items() if name != HEAD}
    hint = "are missing (a --base folder of Qwen2-VL-2B-Instruct has frozen ones)"
    check_places(others, empty_model(config), hint)
    return head


def _normalisation(settings: Mapping[str, float] | None) -> dict[str, tuple[float, float]]:
    """Return each score's mean and standard deviation: those in `settings`, or else the released checkpoint's."""
    if not settings:
        return NORMALISATION
    return {name: (float(settings[f"{name}_mean"]), float(settings[f"{name}_std"])) for name in NAMES}
