"""Functions that read VideoAlign's release: settings, weights, tokenizer and rubric.

The release is a training state: a pickle with adapters next to their matrices, under the names of an older library. It
does not have the network's sizes, nor the rubric, which is in VideoAlign's own repository.
"""

import ast
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoTokenizer, Qwen2VLConfig

from sage_grpo.rewards.checkpoints import unpickle_tensors
from sage_grpo.rewards.errors import RewardError
from sage_grpo.rewards.videoalign.model import PROMPT_PLACE, TOKENS

FULL, ADAPTER, REST = "model.pth", "adapter_model.safetensors", "non_lora_state_dict.pth"
TEMPLATES, TEMPLATE = "prompt_template.py", "DETAILED_PROMPT_WITH_SPECIAL_TOKEN"
# what this scorer does; a checkpoint trained otherwise would get other numbers than its own code gives
EXPECTED: dict[str, dict[str, Any]] = {
    "model_config": {"use_special_tokens": True},
    "data_config": {"prompt_template_type": "detailed_special", "sample_type": "uniform", "num_frames": None},
}
QWEN2_VL_2B: dict[str, Any] = {
    "text_config": {
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 32768,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]},
    },
    "vision_config": {"depth": 32, "embed_dim": 1280, "hidden_size": 1536, "num_heads": 16, "mlp_ratio": 4},
}


def plain_name(name: str) -> str:
    name = name.removeprefix("base_model.model.").replace(".base_layer.", ".")
    return name.replace(".default.", ".") if ".lora_" in name else name


def read_settings(source: Path) -> dict[str, Any]:
    path = source / "model_config.json"
    if not path.is_file():
        raise RewardError(f"{source} has no model_config.json: give the folder that was downloaded as VideoReward")
    trained: dict[str, Any] = json.loads(path.read_text())
    for section, values in EXPECTED.items():
        for key, value in values.items():
            actual = (trained.get(section) or {}).get(key, value)
            if actual != value:
                raise RewardError(f"{path}: {section}.{key} is {actual!r}; this scorer knows only {value!r}")
    return trained


def find_checkpoint(source: Path) -> Path:
    steps = [path for path in source.glob("checkpoint-*") if path.name.split("-")[-1].isdigit()]
    for folder in [*sorted(steps, key=lambda path: -int(path.name.split("-")[-1])), source]:
        if (folder / FULL).is_file() or ((folder / ADAPTER).is_file() and (folder / REST).is_file()):
            return folder
    raise RewardError(f"{source} has no checkpoint-N with {FULL}, nor with {ADAPTER} and {REST}")


def read_rubric(source: Path, rubric: Path | None) -> str:
    near = [folder / TEMPLATES for folder in (source, *source.resolve().parents[:2])]
    path = rubric or next((path for path in near if path.is_file()), None)
    if path is None or not path.is_file():
        raise RewardError(
            f"the rubric is not {'at ' + str(rubric) if rubric else 'near the checkpoint'}: it is in {TEMPLATES} of "
            "github.com/KwaiVGI/VideoAlign; name your copy with --rubric"
        )
    text = path.read_bytes().decode()
    if path.suffix == ".py":  # read, never run
        templates = [
            node.value
            for node in ast.parse(text).body
            if isinstance(node, ast.Assign)
            and any(isinstance(name, ast.Name) and name.id == TEMPLATE for name in node.targets)
        ]
        if not templates:
            raise RewardError(f"{path} has no {TEMPLATE}")
        text = str(ast.literal_eval(templates[-1]))
    parts = [*TOKENS[:2], PROMPT_PLACE, TOKENS[2]]
    positions = [text.find(part) for part in parts]
    if any(text.count(part) != 1 for part in parts) or positions != sorted(positions):
        raise RewardError(f"{path} is not VideoAlign's rubric: it should have once each, in order, {', '.join(parts)}")
    return text


def find_tokenizer(source: Path, checkpoint: Path, base: Path | None) -> Any:
    for folder in (checkpoint / "tokenizer", checkpoint, source / "tokenizer", base):
        if folder and any((folder / name).is_file() for name in ("tokenizer.json", "vocab.json")):
            tokenizer = cast(Any, AutoTokenizer).from_pretrained(folder, local_files_only=True)
            if folder == base:
                tokenizer.add_special_tokens({"additional_special_tokens": list(TOKENS)})
            return tokenizer
    raise RewardError(f"{checkpoint} has no tokenizer; name a folder of Qwen2-VL-2B-Instruct with --base")


def network_config(source: Path, checkpoint: Path, base: Path | None, state: Mapping[str, Tensor]) -> Qwen2VLConfig:
    for folder in (base, checkpoint, source):
        if folder and (folder / "config.json").is_file():
            config = Qwen2VLConfig.from_pretrained(folder)
            break
    else:
        config = Qwen2VLConfig(**QWEN2_VL_2B)
    embedding = state.get("language_model.embed_tokens.weight")
    if embedding is not None:
        config.text_config.vocab_size = len(embedding)
    return config


def read_weights(checkpoint: Path, base: Path | None) -> tuple[dict[str, Tensor], list[Path]]:
    state: dict[str, Tensor] = {}
    shards = sorted(base.glob("*.safetensors")) if base else []
    if base and not shards:
        raise RewardError(f"{base} has no safetensors; --base is a folder of Qwen2-VL-2B-Instruct")
    for shard in shards:
        state |= {plain_name(name): value for name, value in load_file(shard).items()}
    files = [checkpoint / FULL] if (checkpoint / FULL).is_file() else [checkpoint / ADAPTER, checkpoint / REST]
    for path in files:
        tensors = load_file(path) if path.suffix == ".safetensors" else unpickle_tensors(path)
        state |= {plain_name(name): value for name, value in tensors.items()}
    return state, files
