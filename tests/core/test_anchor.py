"""Anchors: which weights the reference has, when it moves, and that lending it out changes nothing."""

import pytest
import torch

from gaussian_model import GaussianModel
from sage_grpo.config import KLConfig
from sage_grpo.core.anchor import is_renewed
from sage_grpo.core.callback import Callback
from sage_grpo.core.copy_bank import CopyBank
from support import make_config, make_loop, weights


class Updates(Callback):
    """The weights after each update, and the anchor's."""

    def __init__(self):
        self.policy, self.anchor = [], []

    def on_update(self, loop, result):
        self.policy.append(weights(loop))
        saved = loop.bank.state_dict().get("anchor")
        self.anchor.append(saved and torch.cat([t.double().flatten() for t in saved.values()]))


def run(iterations=7, **kl):
    seen = Updates()
    loop, recorder = make_loop(make_config(kl=kl), callbacks=[seen])
    start = weights(loop)
    loop.run(iterations)
    return start, seen, recorder.updates


def test_moving_anchor_is_the_policy_of_n_updates_ago():
    start, seen, results = run(anchor="moving", ref_model_sync_steps=3)
    history = [start, *seen.policy]
    for update, anchor in enumerate(seen.anchor):
        assert torch.equal(anchor, history[update // 3 * 3]), update
    fresh = [i for i, r in enumerate(results) if r.mean("kl_anchor") == 0]
    assert fresh == [0, 3, 6]  # right after a refresh the policy is its own reference


def test_fixed_anchor_is_the_initial_policy():
    start, seen, results = run(anchor="fixed")
    assert all(torch.equal(anchor, start) for anchor in seen.anchor)
    assert all(r.mean("kl_anchor") > 0 for r in results[1:])


def test_no_anchor_makes_no_copy_and_no_forward():
    model = GaussianModel()
    calls = []
    inner = model.velocity
    model.velocity = lambda *a: (calls.append(torch.is_grad_enabled()), inner(*a))[1]
    loop, seen = make_loop(make_config(kl={"anchor": "none"}), model=model)
    loop.iterate()
    gate, direction, probe = 3 * 2, 1, 1
    assert calls.count(False) == 6 + direction  # the rollout and a check, no anchor
    assert calls.count(True) == gate + probe + 5
    assert loop.bank.state_dict() == {}
    assert seen.updates[0].mean("kl_anchor") == 0


def test_previous_policy_needs_no_copy():
    """The velocity term is felt from the second update of a rollout on, and without any extra forward."""
    config = make_config(policy={"num_iterations": 3}, kl={"anchor": "none", "old_weight": 1.0})
    loop, seen = make_loop(config)
    loop.iterate()
    assert [r.mean("kl_old") > 0 for r in seen.updates] == [False, True, True]
    assert seen.updates[-1].mean("kl_penalty") == pytest.approx(seen.updates[-1].mean("kl_old"))


def test_lending_the_anchor_changes_nothing():
    model = GaussianModel()
    bank = CopyBank(model.module)
    bank.save("a")
    copy = bank.state_dict()["a"]["body.0.weight"].clone()
    with torch.no_grad():
        for p in model.module.parameters():
            p.add_(torch.randn_like(p))
    before = [p.detach().clone() for p in model.module.parameters()]

    def borrow():
        with bank.using("a"):
            assert torch.equal(model.module.body[0].weight, copy)
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        borrow()
    assert all(torch.equal(p, b) for p, b in zip(model.module.parameters(), before, strict=True))
    assert torch.equal(bank.state_dict()["a"]["body.0.weight"], copy)


def test_copies_may_wait_on_another_device():
    model = GaussianModel()
    elsewhere = CopyBank(model.module, torch.device("meta"))  # the only other device that every computer has
    elsewhere.save("a")
    elsewhere.save("a", decay=0.5)
    assert {copy.device.type for copy in elsewhere.state_dict()["a"].values()} == {"meta"}
    bank = CopyBank(model.module)
    bank.save("a")
    elsewhere.load_state_dict(bank.state_dict())
    assert {copy.device.type for copy in elsewhere.state_dict()["a"].values()} == {"meta"}
    assert {p.device.type for p in model.module.parameters()} == {"cpu"}


def test_frozen_parameters_are_not_copied():
    model = GaussianModel()
    model.module.body[0].weight.requires_grad_(False)
    bank = CopyBank(model.module)
    bank.save("a")
    assert "body.0.weight" not in bank.state_dict()["a"]


@pytest.mark.parametrize(("anchor", "due"), [("none", []), ("fixed", [0]), ("moving", [0, 4, 8])])
def test_when_an_is_renewed(anchor, due):
    config = KLConfig(anchor=anchor, ref_model_sync_steps=4)
    assert [u for u in range(10) if is_renewed(config, u)] == due


def test_copies_of_a_checkpoint_go_to_the_weights_or_to_the_bank_s_own_device():
    """A checkpoint is read on the host; `meta` stands for an accelerator."""

    def made(device):
        return torch.nn.Linear(2, 3, device=device)

    written, read = CopyBank(made("cpu")), CopyBank(made("meta"))
    written.save("ema")
    read.load_state_dict(written.state_dict())
    assert {copy.device.type for copy in read.state_dict()["ema"].values()} == {"meta"}
    waiting = CopyBank(made("meta"), torch.device("cpu"))
    waiting.load_state_dict(written.state_dict())
    assert {copy.device.type for copy in waiting.state_dict()["ema"].values()} == {"cpu"}
    here, there = (torch.optim.AdamW(made(device).parameters()) for device in ("cpu", "meta"))
    for parameter in here.param_groups[0]["params"]:
        parameter.grad = torch.ones_like(parameter)
    here.step()
    there.load_state_dict(here.state_dict())
    assert {state["exp_avg"].device.type for state in there.state.values()} == {"meta"}
