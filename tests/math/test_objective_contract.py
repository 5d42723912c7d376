"""The contract of objectives: those that are built in hold it, and each of its sentences refuses something."""

import re
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from sage_grpo.math.objective_contract import check_objective
from sage_grpo.math.objectives import OBJECTIVES

NAMES = sorted(OBJECTIVES)
PAGE = Path(__file__).parents[2] / "docs" / "add-an-objective.md"


@pytest.mark.parametrize("name", NAMES)
def test_built_in(name):
    check_objective(OBJECTIVES[name]())


def changed(**parts):
    """Of a loss, by functions of it."""
    return lambda loss, inputs: replace(told := loss(inputs), **{name: f(told) for name, f in parts.items()})


FAULTS = {
    "sign of the advantage": lambda loss, inputs: loss(replace(inputs, advantage=-inputs.advantage)),
    "is not 0": changed(log_ratio=lambda told: told.log_ratio + 1e-9),
    "upside down": changed(log_ratio=lambda told: -told.log_ratio),
    "has no gradient": changed(value=lambda told: told.value.detach()),
    "one number per video": changed(log_ratio=lambda told: told.log_ratio.mean()),
    "differs when it is computed again": changed(value=lambda told: told.value + 1e-3 * torch.rand(())),
    "finite": changed(value=lambda told: told.value.float()),
    "videos that are clipped": changed(clipped=lambda loss: torch.ones_like(loss.clipped)),
}


@pytest.mark.parametrize("sentence", FAULTS)
@pytest.mark.parametrize("name", NAMES)
def test_faults(name, sentence):
    @dataclass(frozen=True, kw_only=True)
    class Planted(OBJECTIVES[name]):
        def loss(self, inputs):
            return FAULTS[sentence](super().loss, inputs)

    with pytest.raises(ValueError, match=rf"^Planted: .*{sentence}"):
        check_objective(Planted())


def test_the_page_shows_one_in_under_60_lines():
    """With its test. That all of it runs is asked by tests/documentation."""
    blocks = re.findall(r"```python title=.*?\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 2
    assert sum(len(block.splitlines()) for block in blocks) < 60
