"""The gauge's initial policy: read from the checkpoint where there is one, and not a third copy of the weights."""

import json
from collections import Counter

import pytest

pytest.importorskip("diffusers")

import torch

from sage_grpo.core.copy_bank import CopyBank
from sage_grpo.distributed import shard
from sage_grpo.distributed.shard import base_weights
from sage_grpo.models import contract
from sage_grpo.models.wan import Wan22
from sage_grpo.training.drift_gauge import INITIAL
from sage_grpo.training.trainer import Trainer


def brightness(videos, prompts):
    return [video.float().mean().item() for video in videos]


def settings(checkpoint, out):
    frames, height, width = Wan22.tiny_size
    size = {"frames": frames, "height": height, "width": width}
    return {
        "model": {"type": "wan2.2", "path": checkpoint, "options": dict(Wan22.tiny_options), **size},
        "tuning": {"mode": "full"},
        "sampling": {"steps": 4},
        "policy": {"prompts_per_iteration": 1, "num_generations": 2, "batch_size": 2},
        "optimizer": {"lr": 1e-2},
        "gauge": {"every": 1},
        "run": {"out": str(out), "iterations": 3, "sample_every": 0, "trackers": ["jsonl"], "save_every": 3},
    }


def drift(trainer):
    trainer.train()
    rows = [json.loads(line) for line in (trainer.folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name.startswith("drift/")} for row in rows]


@pytest.mark.slow
def test_what_is_read_is_what_would_have_been_kept(tmp_path):
    """Two experts in one checkpoint, all weights trained."""
    checkpoint = contract.make_checkpoint(Wan22, tmp_path / "base")
    reading = Trainer(rewards=[brightness], config=settings(checkpoint, tmp_path / "reading"), prompts=["a cat"])
    keeping = Trainer(rewards=[brightness], config=settings(checkpoint, tmp_path / "keeping"), prompts=["a cat"])
    keeping.loop.bank = CopyBank(keeping.model.module)
    found, expected = drift(reading), drift(keeping)
    assert found == expected
    assert found[0]["drift/kl_initial"] == 0 < found[-1]["drift/kl_initial"]
    assert INITIAL in keeping.loop.bank.state_dict()
    assert INITIAL not in reading.loop.bank.state_dict()  # nor in its checkpoints
    one, other = (dict(trainer.model.module.named_parameters()) for trainer in (reading, keeping))
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.slow
def test_a_model_that_was_handed_over_keeps_its_own(tmp_path):
    """Its weights need not be those of its folder."""
    checkpoint = contract.make_checkpoint(Wan22, tmp_path / "base")
    config = settings(checkpoint, tmp_path / "run")
    size = {name: config["model"][name] for name in ("frames", "height", "width")}
    model = Wan22.from_pretrained(checkpoint, **size, **Wan22.tiny_options)
    with torch.no_grad():
        for weight in model.module.parameters():
            weight.mul_(1.1)
    trainer = Trainer(model, [brightness], config, ["a cat"])
    assert drift(trainer)[0]["drift/kl_initial"] == 0
    assert INITIAL in trainer.loop.bank.state_dict()


@pytest.mark.slow
def test_files_are_opened_once_a_measurement(tmp_path, monkeypatch):
    """Not once a weight: two experts, each in several files."""
    pipe, folder = Wan22.tiny(), tmp_path / "base"
    pipe.save_pretrained(str(folder), max_shard_size="30KB")
    model = Wan22.from_pretrained(str(folder), **Wan22.tiny_options)
    opened, inner = Counter(), shard.safe_open
    read = base_weights(model)
    monkeypatch.setattr(shard, "safe_open", lambda path, kind: opened.update([path]) or inner(path, kind))
    weights = dict(model.module.named_parameters())
    with torch.no_grad():
        expected = {name: weight.clone() for name, weight in weights.items()}
        for weight in weights.values():
            weight.zero_()
        read(weights)
    assert all(torch.equal(weights[name], weight) for name, weight in expected.items())
    files = {path for part in Wan22.denoisers for path in (folder / part).glob("*.safetensors")}
    assert len(files) > 2
    assert opened == dict.fromkeys(files, 1)


@pytest.mark.slow
def test_a_checkpoint_without_a_weight_lends_nothing(tmp_path):
    checkpoint = contract.make_checkpoint(Wan22, tmp_path / "base")
    model = Wan22.from_pretrained(checkpoint, **Wan22.tiny_options)
    assert base_weights(model) is not None
    model.folder = str(tmp_path / "nowhere")
    assert base_weights(model) is None


def test_weights_are_back_after_a_visit_that_fails():
    module = torch.nn.Linear(2, 2)

    def fill(parameters):
        parameters["weight"].zero_()
        raise OSError("the disk is gone")

    bank, before = CopyBank(module, lazy_copies={"initial": fill}), module.weight.detach().clone()
    with pytest.raises(OSError, match="gone"), bank.using("initial"):
        pass
    assert torch.equal(module.weight, before)
    assert "initial" in bank
    assert bank.state_dict() == {}
