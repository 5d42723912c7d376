"""Prompts are encoded before the run: the same weights, no encoder in training, and what is stored is made once."""

import io

import pytest

pytest.importorskip("diffusers")

import torch
from rich.console import Console

from sage_grpo.config import load_recipe
from sage_grpo.data.prompts import open_prompts
from sage_grpo.models import contract
from sage_grpo.models.encoders import LeftOut
from sage_grpo.models.hunyuan15 import HunyuanVideo15, HunyuanVideo15ImageToVideo
from sage_grpo.models.wan import Wan
from sage_grpo.training.encode import encode_ahead, shares
from sage_grpo.training.trainer import Trainer

pytestmark = pytest.mark.slow
TEXTS = ["a cat", 'a long shop sign that says "open"', "a red kite", "a boat", "rain"]


def recipe(kind, path, out, **tuning):
    adapter = {"wan": Wan, "hunyuan15": HunyuanVideo15}[kind]
    # at its tiny size Wan has two tokens, and gradients that are rounding alone
    frames, height, width = (9, 32, 32) if kind == "wan" else adapter.tiny_size
    model = {"type": kind, "path": str(path), "frames": frames, "height": height, "width": width}
    return {
        "model": model | {"guidance_scale": 3.0, "negative_prompt": "blurry", "options": dict(adapter.tiny_options)},
        "tuning": {"mode": "lora", "rank": 2, **tuning},
        "sampling": {"steps": 3},
        "policy": {"prompts_per_iteration": 2, "num_generations": 2, "batch_size": 4},
        "optimizer": {"lr": 1e-3},
        "run": {"out": str(out), "iterations": 2, "sample_every": 2, "samples": 2, "trackers": []},
    }


def train(settings, prompts=TEXTS, console=None):
    def brightness(videos, prompts):
        return [video.float().mean().item() for video in videos]

    trainer = Trainer(rewards=[brightness], config=settings, prompts=prompts, console=console)
    trainer.train()
    weights = trainer.model.module.named_parameters()
    return trainer, {name: weight.detach().clone() for name, weight in weights if weight.requires_grad}


def assert_equal(expected, found):
    off = {
        name: (x - found[name]).abs().max().item() for name, x in expected.items() if not torch.equal(x, found[name])
    }
    assert not off


@pytest.fixture
def loads(monkeypatch):
    """How often encoders were read from disk."""
    count, load = [], LeftOut.load
    monkeypatch.setattr(LeftOut, "load", lambda *arguments: count.append(1) or load(*arguments))
    return count


@pytest.mark.parametrize("kind", ["wan", "hunyuan15"])
def test_weights_are_the_same_and_training_has_no_encoder(kind, tmp_path, loads):
    adapter = {"wan": Wan, "hunyuan15": HunyuanVideo15}[kind]
    path = contract.make_checkpoint(adapter, tmp_path / "base")
    held, expected = train(recipe(kind, path, tmp_path / "a", encode_ahead=False))
    assert held.model.pipe.text_encoder is not None
    assert not loads
    shared = {"conditions": str(tmp_path / "conditions")}
    ahead, found = train(recipe(kind, path, tmp_path / "b", **shared))
    assert_equal(expected, found)
    assert ahead.model.pipe.text_encoder is None
    assert len(loads) == 1
    _, again = train(recipe(kind, path, tmp_path / "c", **shared))  # all is stored: not even loaded
    assert_equal(expected, again)
    assert len(loads) == 1


def test_prompts_of_a_function_are_encoded_as_they_come(tmp_path, loads):
    path = contract.make_checkpoint(Wan, tmp_path / "base")
    rows = open_prompts(TEXTS)
    trainer, found = train(recipe("wan", path, tmp_path / "a"), prompts=lambda start, count: list(rows(start, count)))
    assert trainer.model.pipe.text_encoder is not None
    _, expected = train(recipe("wan", path, tmp_path / "b"))
    assert_equal(expected, found)
    assert len(loads) == 1


class Together:
    """One of two processes, of which the other does as much."""

    global_world = 2

    def __init__(self, rank):
        self.global_rank = rank

    def everybody(self, value):
        return [value, value]


class Interrupted(Exception):
    pass


@pytest.fixture
def encode(tmp_path):
    path = contract.make_checkpoint(HunyuanVideo15ImageToVideo, tmp_path / "base")
    model = contract.load(HunyuanVideo15ImageToVideo, path)
    pictures = [prompt.columns["image"] for prompt in contract.prompts_for(model)]
    prompts = open_prompts([{"prompt": text, "image": pictures[i % 2]} for i, text in enumerate(TEXTS)])
    run = {"iterations": 100, "sample_every": 1, "samples": 2, "sample_height": 64}
    config = load_recipe({"run": run, "policy": {"prompts_per_iteration": 2, "batch_size": 4}})

    def go(folder, rank=None, stop_after=None):
        """How many embeddings this process made."""
        model = contract.load(
            HunyuanVideo15ImageToVideo, path, conditions=tmp_path / folder, without_encoders=True, guided=True
        )
        seen, embed = [], model.embed_text

        def stopping(text):
            if len(seen) == stop_after:
                raise Interrupted
            seen.append(text)
            return embed(text)

        model.embed_text = stopping
        marks, console = [], Console(file=io.StringIO())
        try:
            encode_ahead(model, prompts, config, None if rank is None else Together(rank), marks.append, console)
        except Interrupted:
            assert model.pipe.text_encoder is None
        return model.conditions.made

    return go


WHOLE = 5 + 1 + 2 + 2  # texts, the negative one, two pictures, the same at the size of the sample videos


def test_an_interrupted_encoding_continues(encode):
    first = encode("c", stop_after=3)
    assert 3 <= first < WHOLE
    assert first + encode("c") == WHOLE
    assert encode("c") == 0


def test_two_processes_deal_the_prompts_out(encode, monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    first, second = encode("shared", 0), encode("shared", 1)
    assert first < WHOLE
    assert second < WHOLE
    assert encode("shared") == 0  # one process afterwards finds all of it


def test_a_node_without_the_others_files_makes_its_own(encode, monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    assert encode("one", 0) == encode("other", 1) == WHOLE
    assert encode("shared", 0) == WHOLE  # alone here: the other one writes nothing
    assert encode("shared", 1) == 0


@pytest.mark.parametrize(
    ("local", "place", "rounds"), [("2", "0", [(5, 8), (0, 2)]), ("8", "5", [(5, 8)]), (None, "3", [(5, 8), (0, 1)])]
)
def test_rounds_of_a_process(local, place, rounds, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", place)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    if local:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", local)
    process = Together(5)
    process.global_world = 8
    assert shares(process) == rounds
