"""Documentation that can be wrong is checked: the equation map, links, the size of the core."""

import ast
import importlib
import inspect
import re
from pathlib import Path

import pytest

from sage_grpo.config import RecipeConfig

ROOT = Path(__file__).parents[2]
EQUATIONS = (ROOT / "docs" / "equations.md").read_text()


def rows(section: str) -> list[list[str]]:
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


before_errata, errata = EQUATIONS.split("## Errata")
MAP, ERRATA = rows(before_errata), rows(errata.split("\n## ")[0])


def numbers(text: str) -> set[int]:
    """The equation numbers that a text names: `Eq. 11-13` names three, `Eq. 5 / 21` two."""
    found = set()
    for match in re.findall(r"Eq\. ([\d /,-]+)", text):
        for part in re.split(r"[/,]", match):
            ends = [int(n) for n in re.findall(r"\d+", part)]
            found |= set(range(ends[0], ends[-1] + 1)) if ends else set()
    return found


def assert_test_exists(node: str) -> None:
    path, name = node.strip("`").split("::")
    functions = {n.name for n in ast.walk(ast.parse((ROOT / path).read_text())) if isinstance(n, ast.FunctionDef)}
    assert name in functions, f"{node} does not exist"


@pytest.mark.parametrize(("equation", "function", "test"), MAP, ids=lambda cell: cell.strip("`"))
def test_equation_map(equation, function, test):
    module, name = function.strip("`").rsplit(".", 1)
    target = getattr(importlib.import_module(module), name)
    assert numbers(equation) <= numbers(inspect.getdoc(target) or ""), f"{function} does not mention {equation}"
    assert_test_exists(test)


def test_every_tagged_function_is_in_the_map():
    mapped = {function.strip("`") for _, function, _ in MAP}
    for path in sorted((ROOT / "src/sage_grpo/math").glob("*.py")):
        module = importlib.import_module(f"sage_grpo.math.{path.stem}") if path.stem != "__init__" else None
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if function.__module__ == getattr(module, "__name__", "") and numbers(inspect.getdoc(function) or ""):
                assert f"{module.__name__}.{name}" in mapped, f"{name} carries an equation but is not in the map"


@pytest.mark.parametrize("row", ERRATA, ids=lambda row: row[0])
def test_errata_have_tests(row):
    assert_test_exists(row[-1])


def test_every_erratum_of_the_design_is_listed():
    assert [row[0] for row in ERRATA] == [
        "Eq. 3",
        "Eq. 7",
        "score",
        "Eq. 11-13",
        "Eq. 15",
        "Eq. 42",
        "Eq. 43",
        "first step",
        "Table 2",
    ]


@pytest.mark.parametrize("path", ["README.md", *(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md"))])
def test_links_and_pictures_exist(path):
    file = ROOT / path
    for target in re.findall(r"\]\(([^)#]+)\)", file.read_text()):
        if "://" not in target:
            assert (file.parent / target).exists(), f"{path} points to {target}"


def test_claims_are_those_of_the_last_run():
    """Every row that `python -m research reproduce` wrote stands in the page, and there are at least ten."""
    written = (ROOT / "docs" / "claims" / "claims.md").read_text().strip().splitlines()
    page = (ROOT / "docs" / "claims.md").read_text()
    assert len(written) >= 12
    assert all(row in page for row in written)


REFERENCE_FLAGS = [
    "pretrained_model_root",
    "learning_rate",
    "batch_size",
    "num_generations",
    "max_steps",
    "output_dir",
    "sp_size",
    "enable_fsdp",
    "enable_gradient_checkpointing",
    "sde_type",
    "use_grad_balancing",
    "enable_timestep_permutation",
    "kl_weight",
    "kl_coef",
    "kl_min_coef",
    "use_moving_KL",
    "update_ref_model_step",
    "use_dual_kl",
    "dual_kl_moving_weight",
    "dual_kl_step_weight",
    "validate_at_step0",
    "validate_video_length",
    "validation_timestep_shift",
    "reference_mode_offload",
    "world_size",
    "pretrained_transformer_version",
    "seed",
    "gradient_accumulation_steps",
    "max_grad_norm",
    "weight_decay",
    "use_muon",
    "use_lora",
    "dtype",
    "master_weight_type",
    "dp_replicate",
    "reward_model",
    "reward_weights",
    "reward_checkpoint_mode",
    "train_video_csv",
    "save_interval",
    "resume_from_checkpoint",
    "validation_interval",
    "validation_fixed_size",
    "validation_global_seed",
]


def test_every_flag_of_the_reference_is_on_the_page():
    """What each of them is mapped to is compared with the recipe in tests/config/test_released.py."""
    page = (ROOT / "docs" / "reference-flags.md").read_text()
    mapped = rows(page.split("## Flags and settings")[1].split("\n## ")[0])
    for flag in REFERENCE_FLAGS:
        assert any(re.search(rf"`(--)?{flag}`", row[0]) for row in mapped), flag
    rest = re.findall(r"`(\w+\.\w+)`", page.split("Not in the reference")[1])
    for key in rest:
        section, name = key.split(".")
        assert name in RecipeConfig.model_fields[section].annotation.model_fields, key


def test_audit_tables_are_those_of_the_last_run():
    """Every table that `rewards audit` wrote stands in the page: docs/audit/into_page.py puts it there."""
    page = (ROOT / "docs" / "rewards-audit.md").read_text()
    written = sorted((ROOT / "docs" / "audit").glob("*/audit.md"))
    assert len(written) >= 3
    for table in written:
        assert table.read_text() in page, f"make audit; or python docs/audit/into_page.py for {table.parent.name}"
