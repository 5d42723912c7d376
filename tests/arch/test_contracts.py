"""What one part may ask of another stands in a contract; it is not found by looking whether a name is there."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2] / "src" / "sage_grpo"
OTHERS = {  # objects of other libraries and of users, which promise us nothing
    "training/build.py": {"from_pretrained"},  # a user's class or function that makes a model
    "config/load.py": {"__args__"},  # typing
    "core/video_model.py": {"full_tensor"},  # a DTensor, which the core must not import
    "data/prompts.py": {"__len__", "__getitem__", "select_columns"},  # a list, or a dataset of `datasets`
    "distributed/checkpoint.py": {"failures"},  # torch's CheckpointException
    "distributed/fake_group.py": {"_get_device_handle"},  # modules of FSDP2
    "preflight/plan/fake_tensors.py": {"inverted"},  # a mark on a tensor
    "inference/export.py": {"load_lora_weights", "transformer_2"},  # a pipeline
    "distributed/hang.py": {"_dump_fr_trace_json"},  # torch's flight recorder
    "models/conditions.py": {"backend_tokenizer", "chat_template", "vae"},  # a tokenizer, a pipeline
    "registry.py": {"__name__"},  # what a user's name stands for
    "preflight/rehearsal/fake_device.py": {"inverted"},
    "preflight/rehearsal/fake_run.py": {"key", "idx", "origin"},  # a path of pytree, a mark on a tensor
    "preflight/rehearsal/fake_values.py": {"kept", "origin"},
    "rewards/function.py": {"__name__"},  # a user's function
    "evaluation/clips.py": {"strerror", "n_frames"},  # an OSError, a picture of PIL
    "serve/fleet.py": {"kill_all_processes"},  # what Ray started on this machine
    "weights/export.py": {"load_lora_adapter", "load_lora_weights"},
    "weights/lora_bank.py": {"add_adapter"},
    "weights/merge.py": {"_hf_peft_config_loaded"},
    "weights/parts.py": {"_keep_in_fp32_modules"},
    "weights/prepare.py": {"_repeated_blocks"},
}


def asked(source: str) -> set[str]:
    """Names that are looked for by `getattr` or `hasattr`."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call) and len(node.args) > 1]
    return {
        str(call.args[1].value)
        for call in calls
        if isinstance(call.func, ast.Name) and call.func.id in ("getattr", "hasattr")
        if isinstance(call.args[1], ast.Constant)
    }


def test_our_own_objects_have_contracts():
    found = {str(path.relative_to(ROOT)): asked(path.read_text()) for path in sorted(ROOT.rglob("*.py"))}
    assert {path: names for path, names in found.items() if names} == OTHERS


def test_the_test_sees_them():
    assert asked("x = getattr(reward, 'submit', None) or hasattr(model, 'place')") == {"submit", "place"}
    assert not asked("getattr(config, name)")
