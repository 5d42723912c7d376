"""Merged adapters: what survives of a small update, against weights in float64."""

import pytest

pytest.importorskip("diffusers")
pytest.importorskip("peft")

import torch

from sage_grpo.models.hunyuan15 import HunyuanVideo15
from sage_grpo.models.wan import Wan
from sage_grpo.weights.lora_bank import lora_layers
from sage_grpo.weights.merge import merge_adapters
from tiny_models import tiny_model

pytestmark = pytest.mark.slow

SHARE = 5e-4  # of the weights: what a short run changes


def slightly_trained(adapter):
    """A model in bfloat16 whose adapters change every layer by `SHARE`; with weights and updates in float64."""
    model = tiny_model(adapter, {"mode": "lora", "precision": "bfloat16", "alpha": 8})
    torch.manual_seed(0)
    exact = {}
    names = [name for name, layer in model.module.named_modules() if layer in lora_layers(model.module)]
    with torch.no_grad():
        for name, layer in zip(names, lora_layers(model.module), strict=True):
            a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
            weight = layer.get_base_layer().weight
            b.normal_()
            b.mul_(SHARE * weight.float().norm() / (2 * b @ a).norm())
            exact[f"{name}.weight"] = weight.double().clone(), 2 * b.double() @ a.double()  # alpha/rank = 2
    return model, exact


def survival(model, exact):
    weights = model.module.state_dict()
    before, update = (torch.cat([pair[i].flatten() for pair in exact.values()]) for i in range(2))
    change = torch.cat([weights[name].double().flatten() for name in exact]) - before
    return change.dot(update) / update.dot(update), (change - update).norm() / update.norm()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("adapter", [Wan, HunyuanVideo15])
def test_what_survives_is_told(adapter, dtype):
    model, exact = slightly_trained(adapter)
    told = merge_adapters(model.module, dtype)
    kept, error = survival(model, exact)
    mine = told[str(dtype).removeprefix("torch.")]
    assert mine["survives"] == pytest.approx(kept.item(), abs=1e-4)
    assert mine["rounding_error"] == pytest.approx(error.item(), abs=1e-4)
    assert {model.module.state_dict()[name].dtype for name in exact} == {dtype}
    if dtype == torch.float32:
        assert kept > 0.99
        assert error < 0.01
        assert told["bfloat16"]["survives"] < 0.7, "what a user who loads it in bfloat16 must know"
    else:
        assert kept < 0.7
        assert error > 0.5


def test_an_untrained_adapter_loses_nothing():
    model = tiny_model(Wan, {"mode": "lora", "precision": "bfloat16"})
    told = merge_adapters(model.module)
    assert told["float32"] == told["bfloat16"] == {"survives": 1.0, "rounding_error": 0.0}
