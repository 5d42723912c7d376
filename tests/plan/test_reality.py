"""Layouts of tiny models, planned and run: passes equal, memory within a tenth. `make plan-check` does all of them."""

import pytest

pytest.importorskip("diffusers")

from plan.reality import MEASURED, measure, planned
from sweeps import further

pytestmark = pytest.mark.slow

CASES = {
    "first": ("hunyuan15 full, nft",),
    "others": ("wan lora, bf16", "hunyuan15 full, 2 shards", "wan lora, dpo"),
}


@pytest.mark.parametrize("which", ["first", further("others")])
def test_a_plan_is_what_happens(which, tmp_path):
    measured = measure(tmp_path, list(CASES[which]))
    for name, ranks in measured.items():
        passes, phases = planned(tmp_path, name)
        assert passes == sum(rank["passes"] for rank in ranks), name
        for phase in MEASURED:
            most = max(rank["peaks"][phase] for rank in ranks)
            print(f"{name}, {phase}: planned {phases[phase]}, measured {most}")
            assert phases[phase] == pytest.approx(most, rel=0.1), (name, phase)
