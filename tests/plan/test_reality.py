"""Layouts of tiny models, planned and run: passes equal, memory within a tenth. `make plan-check` does all of them."""

import pytest

pytest.importorskip("diffusers")

from plan.reality import MEASURED, measure, planned

pytestmark = pytest.mark.slow

CASES = ("hunyuan15 full, 2 shards", "wan lora, bf16", "hunyuan15 full, nft", "wan lora, dpo")


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reality")
    return folder, measure(folder, list(CASES))


@pytest.mark.parametrize("name", CASES)
def test_a_plan_is_what_happens(name, real):
    folder, measured = real
    passes, phases = planned(folder, name)
    assert passes == sum(rank["passes"] for rank in measured[name])
    for phase in MEASURED:
        most = max(rank["peaks"][phase] for rank in measured[name])
        print(f"{name}, {phase}: planned {phases[phase]}, measured {most}")
        assert phases[phase] == pytest.approx(most, rel=0.1), phase
