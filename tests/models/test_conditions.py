"""Encoded prompts on disk: what is noticed, what is left out of memory, and that neither changes a number."""

import shutil

import pytest

pytest.importorskip("diffusers")

import torch
from safetensors.torch import load_file, save_file

from sage_grpo.core.protocols import Prompt
from sage_grpo.models import contract
from sage_grpo.models.conditions import ConditionStore
from sage_grpo.models.encoders import LeftOut
from sage_grpo.models.hunyuan15 import HunyuanVideo15, HunyuanVideo15ImageToVideo
from sage_grpo.models.ltx2 import LTX2
from sage_grpo.models.wan import Wan
from sweeps import further

QUICK = (Wan, HunyuanVideo15ImageToVideo, LTX2)
SPACE = ("fingerprint", "text", "torch.float32")


def files(folder):
    return sorted(folder.rglob("*.safetensors"))


def stored(folder, text, value):
    return ConditionStore(folder).get(SPACE, text, lambda: {"text": torch.full((2, 3), value)})["text"][0, 0].item()


def tear(path):
    path.write_bytes(path.read_bytes()[:-5])


def change_a_number(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def change_without_a_hash(path):
    save_file({"text": torch.zeros(2, 3)}, path)


@pytest.mark.parametrize("damage", [tear, change_a_number, change_without_a_hash])
def test_a_changed_file_is_made_again(damage, tmp_path):
    assert stored(tmp_path, b"cat", 1.0) == 1
    assert stored(tmp_path, b"cat", 2.0) == 1
    (path,) = files(tmp_path)
    damage(path)
    assert stored(tmp_path, b"cat", 2.0) == 2
    assert stored(tmp_path, b"cat", 3.0) == 2


def test_a_file_in_place_of_another_is_noticed(tmp_path):
    stored(tmp_path, b"cat", 1.0)
    (cat,) = files(tmp_path)
    stored(tmp_path, b"dog", 2.0)
    (dog,) = set(files(tmp_path)) - {cat}
    shutil.copy(cat, dog)
    assert stored(tmp_path, b"dog", 3.0) == 3


def test_half_a_file_does_not_count_as_stored(tmp_path):
    store = ConditionStore(tmp_path)
    assert not store.has(SPACE, b"cat")
    stored(tmp_path, b"cat", 1.0)
    assert store.has(SPACE, b"cat")
    assert not store.has(("another", *SPACE[1:]), b"cat")
    tear(*files(tmp_path))
    assert not store.has(SPACE, b"cat")


def test_memory_does_not_grow_with_the_number_of_prompts(tmp_path):
    store = ConditionStore(tmp_path)
    for i in range(100):
        store.get(SPACE, b"%d" % i, lambda: {"text": torch.zeros(1)})
    assert len(store.recent) == 32
    assert len(files(tmp_path)) == 100


@pytest.mark.slow
@pytest.mark.parametrize(
    "adapter",
    [adapter if adapter in QUICK else further(adapter) for adapter in contract.adapters()],
    ids=lambda adapter: adapter.__name__,
)
def test_encoders_that_are_left_out_make_the_same_and_are_let_go(adapter, checkpoint, tmp_path, monkeypatch):
    path = checkpoint(adapter)
    model = contract.load(adapter, path, conditions=tmp_path / "held")
    bare = contract.load(adapter, path, conditions=tmp_path / "left out", without_encoders=True)
    prompts = contract.prompts_for(model)
    names = [name for name in model.encoders if getattr(model.pipe, name, None) is not None]
    assert all(bare.lacks(prompt) for prompt in prompts)
    expected, found = model.encode(prompts), bare.encode(prompts)
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert names
    assert all(getattr(bare.pipe, name) is None for name in names)
    assert not any(bare.lacks(prompt) for prompt in prompts)
    again = contract.load(adapter, path, conditions=tmp_path / "left out", without_encoders=True)
    monkeypatch.setattr(LeftOut, "load", None)  # not asked any more
    found = again.encode(prompts)
    assert all(torch.equal(expected[name], found[name]) for name in expected)


@pytest.mark.slow
def test_a_changed_encoder_is_noticed_in_its_files(checkpoint, tmp_path):
    def lacking(folder, **settings):
        model = contract.load(HunyuanVideo15, folder, conditions=tmp_path / "c", without_encoders=True, **settings)
        return model, [prompt.text for prompt in contract.prompts_for(model) if model.lacks(prompt)]

    path = checkpoint(HunyuanVideo15)
    model, missing = lacking(path)
    assert len(missing) == 2
    model.encode(contract.prompts_for(model))
    moved = tmp_path / "moved"
    shutil.copytree(path, moved)
    assert not lacking(str(moved))[1]  # another place is no other encoder
    assert len(lacking(path, negative_prompt="another")[1]) == 2
    assert len(lacking(path, text_tokens=20)[1]) == 2
    assert len(lacking(path, frozen_dtype=torch.bfloat16)[1]) == 2
    for encoder in ("text_encoder", "text_encoder_2"):
        changed = tmp_path / encoder
        shutil.copytree(path, changed)
        (file,) = (changed / encoder).glob("*.safetensors")
        save_file({name: value * 1.01 for name, value in load_file(file).items()}, file, {"format": "pt"})
        assert len(lacking(str(changed))[1]) == 2


@pytest.mark.slow
def test_what_is_saved_has_its_encoders(checkpoint, tmp_path):
    model = contract.load(HunyuanVideo15ImageToVideo, checkpoint(HunyuanVideo15ImageToVideo), without_encoders=True)
    model.save_pretrained(str(tmp_path))
    again = HunyuanVideo15ImageToVideo.pipeline_class.from_pretrained(str(tmp_path))
    assert all(getattr(again, name) is not None for name in model.encoders)
    assert model.pipe.text_encoder is None


@pytest.mark.slow
def test_encoders_are_loaded_once_inside_a_block(checkpoint, tmp_path):
    model = contract.load(Wan, checkpoint(Wan), conditions=tmp_path, without_encoders=True)
    with model.encoding():
        encoder = model.pipe.text_encoder
        model.encode([Prompt("a cat"), Prompt("a dog")])
        assert model.pipe.text_encoder is encoder
    assert model.pipe.text_encoder is None
