"""Two processes in bfloat16 compute what one does: inputs are left alone, weights are cast as autocast casts them."""

import json

import pytest

from distributed.precision_worker import MODELS, MODES
from sage_grpo.distributed.launch import launch
from sage_grpo.registry import resolve_model

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("precision")
    for name in MODELS:
        resolve_model(name).tiny().save_pretrained(str(folder / name))
    launch(2, "distributed.precision_worker", [str(folder)], folder)
    return json.loads((folder / "found.json").read_text())


@pytest.mark.parametrize("case", [f"{model} {mode}" for model in MODELS for mode in MODES])
def test_two_processes_in_bfloat16_equal_one(case, found):
    one = found[case]
    assert one["off"] <= 1e-3
    alone, together = one["told"]
    assert alone  # the network was asked
    assert together == alone  # timesteps to the bit
    norm, shared = one["norms"]
    assert shared == pytest.approx(norm, rel=1e-2)
    print(f"{case}: relative rms {one['off']:.1e}, gradient norm {norm:.6g} and {shared:.6g}")
