"""Every adapter in the folder keeps the contract, found by discovery; and the contract sees planted faults.

Wan and HunyuanVideo-1.5 are in `make quick`: a change that breaks an adapter should be seen within two minutes.
"""

import pytest

pytest.importorskip("diffusers")

import torch

from sage_grpo import registry
from sage_grpo.models import contract
from sage_grpo.models.hunyuan15 import HunyuanVideo15
from sage_grpo.models.wan import Wan

QUICK = (Wan, HunyuanVideo15)
ADAPTERS = [
    pytest.param(adapter, marks=[] if adapter in QUICK else pytest.mark.slow) for adapter in contract.adapters()
]


@pytest.mark.parametrize("check", contract.CHECKS, ids=lambda c: c.__name__)
@pytest.mark.parametrize("guided", [True, False], ids=["guided", "unguided"])
@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda a: a.__name__)
def test_contract(adapter, guided, check, checkpoint):
    check(contract.load(adapter, checkpoint(adapter), guided=guided))


def test_every_adapter_has_a_name_in_recipes():
    targets = {known.attribute for known in registry.models().values()}
    assert {adapter.__name__ for adapter in contract.adapters()} <= targets
    tasks = {adapter.needs_image for adapter in contract.adapters()}
    assert tasks == {True, False}


FAULTS = {
    "sign": (lambda v, x: -v, contract.check_pipeline),
    "scale": (lambda v, x: 1.01 * v, contract.check_pipeline),
    "zero": (lambda v, x: 0 * v, contract.check_pipeline),
    "predicts noise, not velocity": (lambda v, x: v + x, contract.check_pipeline),
    "mixes samples": (lambda v, x: v + 0.01 * v.mean(0, keepdim=True), contract.check_batch),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_contract_sees_a_wrong_velocity(fault, checkpoint):
    damage, check = FAULTS[fault]

    class Wrong(Wan):
        def predict(self, x, sigma, inputs):
            return damage(super().predict(x, sigma, inputs), x)

    with pytest.raises(AssertionError):
        check(contract.load(Wrong, checkpoint(Wan)))


class Deaf(Wan):
    def embed_text(self, text):
        return super().embed_text("")


class WrongTimes(Wan):
    def timestep(self, sigma):
        return sigma


class ForgetsUnused(HunyuanVideo15):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.unused = ()


class FreezesTooMuch(Wan):
    unused = (r"ffn\.net",)


class Dark(Wan):
    def to_pixels(self, x0):
        return super().to_pixels(x0) * 0.5


class Restless(Wan):
    def predict(self, x, sigma, inputs):
        return super().predict(x, sigma, inputs) + 1e-3 * torch.randn_like(x)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("adapter", "base", "check"),
    [
        (Deaf, Wan, contract.check_guidance),
        (WrongTimes, Wan, contract.check_pipeline),
        (ForgetsUnused, HunyuanVideo15, contract.check_gradients),
        (FreezesTooMuch, Wan, contract.check_gradients),
        (Dark, Wan, contract.check_decode),
        (Restless, Wan, contract.check_seeds),
    ],
    ids=lambda value: value.__name__,
)
def test_contract_sees_a_broken_adapter(adapter, base, check, checkpoint):
    with pytest.raises(AssertionError):
        check(contract.load(adapter, checkpoint(base)))
