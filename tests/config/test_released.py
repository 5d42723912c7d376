"""The recipe of the released experiment against the table of its flags, in both directions."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from sage_grpo.config import load_recipe
from sage_grpo.config.load import read_settings, shipped_recipes

RECIPE = "hunyuan15-64gpu-released"
PAGE = (Path(__file__).parents[2] / "docs" / "reference-flags.md").read_text()
ROW = re.compile(
    r"^\| (?P<flag>.+?) \| (?P<released>.+?) \| (?P<setting>.+?) \| (?P<value>.+?) \| (?P<note>.*?) ?\|$", re.M
)
ROWS = [m.groupdict() for m in ROW.finditer(PAGE) if m["setting"].startswith("`")]
OURS = re.findall(r"`([\w.]+)`", PAGE.split("## Settings without a flag")[1].split("\n\n")[1])
# What a released value is called here; numbers and lists mean themselves.
NAMES = {
    "sage_grpo": "sage",
    "videoalign_local": "videoalign",
    "bf16": "bfloat16",
    "VQ 0.5, MQ 0.5, TA 1.0": {"VQ": 0.5, "MQ": 0.5, "TA": 1.0},
    "64 / 2 × 2 / 4": 16,
    "kl_weight": 1e-5,
}
MEANINGS = {  # settings whose value says the same in other words
    ("use_moving_KL", "moving"): True,
    ("use_dual_kl", "sampled"): True,
    ("use_muon", "muon"): True,
    ("use_lora", "full"): False,
    ("training_strategy", None): "all",
    ("enable_fsdp", 64): True,
    ("gradient_accumulation_steps", 16): 1,
    ("cfg_scale", "both"): 6.0,
    ("grpo_sampling_steps", "kernel"): 20,
    ("video_bucket_hw_base_size", 352): 480,
    ("video_bucket_hw_base_size", 624): 480,
    ("AdaptiveKLController", "paper"): "× 0.9, × 1.1",
    ("master_weight_type", "bfloat16"): "fp32",
    ("reward_checkpoint_mode", "checkpoints/videoalign"): "v3",
    ("validation_fixed_size", 480): "480x864",
    ("validation_fixed_size", 864): "480x864",
}
PLACES = {"model.path", "prompts.path", "run.out", "run.resume"}  # of files and folders


def read(text: str) -> Any:
    value = yaml.safe_load(text.strip("`").replace("(", "[").replace(")", "]"))
    try:
        return float(value) if isinstance(value, str) else value  # YAML 1.1 reads 1e-5 as text
    except ValueError:
        return value


def at(values: Any, key: str) -> Any:
    for part in key.split("."):
        values = values[int(part)] if part.isdigit() else values[part]
    return values


def leaves(values: Any, place: str = "") -> dict[str, Any]:
    """Settings by their full key; weights and lists of numbers are one."""
    pairs = values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    if not pairs or place.endswith((".weights", ".betas")):
        return {place: values}
    return {key: leaf for name, part in pairs for key, leaf in leaves(part, f"{place}.{name}".lstrip(".")).items()}


def stands_for(row: dict[str, str], found: Any) -> bool:
    """Whether a value of the recipe says what the released one says."""
    released = NAMES.get(row["released"], read(row["released"]))
    meant = (bare(row), found) if not isinstance(found, dict | list) else ()
    return bool(found == released or (meant in MEANINGS and MEANINGS[meant] == released))


def bare(row: dict[str, str]) -> str:
    return row["flag"].strip("`").removeprefix("--")


def test_the_table_was_read():
    assert len(ROWS) > 60
    assert {"kl.feedback", "optimizer.weight_decay", "run.sample_steps"} <= {row["setting"].strip("`") for row in ROWS}
    assert len(OURS) == 7


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{bare(row)}-{row['setting'].strip('`')}")
def test_every_value_is_that_of_the_recipe(row):
    """And stands for the released one, unless the note says that it differs."""
    found, said = at(load_recipe(RECIPE).model_dump(mode="json"), row["setting"].strip("`")), read(row["value"])
    assert found == said
    if row["setting"].strip("`") in PLACES:
        return
    assert stands_for(row, found) != row["note"].startswith("differs:")


def test_every_line_of_the_recipe_is_a_flag_or_ours():
    """Nothing is set that the page does not name, and each comment begins with the flag that the page has."""
    named = {row["setting"].strip("`") for row in ROWS} - {
        "sampling.window.size",
        "parallel.replicate",
        "run.resume",
    }  # left at their defaults
    assert {*leaves(read_settings(RECIPE))} == named | {*OURS}
    lines = shipped_recipes()[RECIPE].read_text().splitlines()
    for key in sorted(named):
        name = key.rsplit(".", 1)[-1]
        comments = [line.partition("# ")[2] for line in lines if re.match(rf"[ -]*{name}: ", line)]
        flags = {bare(row) for row in ROWS if row["setting"] == f"`{key}`"}
        assert any(flag in comment for comment in comments for flag in flags), (key, flags, comments)


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("hunyuan15-64gpu-released-a", {"rewards.0.weights": {"VQ": 1.0, "MQ": 1.0, "TA": 1.0}}),
        ("hunyuan15-8gpu", {"policy.prompts_per_iteration": 2, "parallel.processes": 8}),
    ],
)
def test_its_variants_differ_in_nothing_else(name, changed):
    base, other = (leaves(load_recipe(of).model_dump(mode="json")) for of in (RECIPE, name))
    assert {key: value for key, value in other.items() if value != base[key]} == changed | {"run.out": f"runs/{name}"}


def test_a_flag_that_drifts_is_seen():
    """The comparison above tells a recipe that is almost the released one."""
    ours = load_recipe("hunyuan15-64gpu-b").model_dump(mode="json")
    off = {row["setting"].strip("`") for row in ROWS if at(ours, row["setting"].strip("`")) != read(row["value"])}
    assert off == {
        "seed",
        "model.guidance_gradient",
        "sampling.last_step",
        "sampling.shared_initial_noise",
        "kl.estimator",
        "kl.feedback",
        "kl.target",
        "optimizer.type",
        "optimizer.betas",
        "optimizer.weight_decay",
        "tuning.offload_copies",
        "run.out",
        "run.keep_every",
        "run.sample_every",
        "run.sample_frames",
        "run.sample_height",
        "run.sample_width",
        "run.sample_steps",
    }
