"""What a recipe says of rewards: presets, monitors, scorers that compare a group, and how scores are combined."""

import json

import pytest
import torch
from rich.console import Console

from gaussian_model import GaussianModel
from sage_grpo.config import ConfigError, load_recipe
from sage_grpo.core.reward import Reward
from sage_grpo.core.scores import Scores
from sage_grpo.training import build
from sage_grpo.training.trackers import read_metrics
from sage_grpo.training.trainer import Trainer
from training.test_trainer import brightness, recipe


class Preset(Reward):
    names = ("VQ", "TA")
    presets = {"A": {"VQ": 1.0, "TA": 1.0}, "B": {"VQ": 0.5}}  # noqa: RUF012

    def score(self, videos, prompts):
        values = videos.double().flatten(1).mean(1)[:, None].expand(-1, 2)
        return Scores(values, torch.ones_like(values, dtype=torch.bool))


class Rank(Reward):
    """Places in the group by brightness: it means nothing for one video alone."""

    names, groupwise = ("rank",), True

    def __init__(self):
        self.seen = []

    def score(self, videos, prompts):
        self.seen.append((len(videos), {prompt.text for prompt in prompts}))
        places = videos.double().flatten(1).mean(1).argsort().argsort().double()[:, None]
        return Scores(places, torch.ones_like(places, dtype=torch.bool))


class Sulking(Preset):
    names = ("mood", "grudge")

    def score(self, videos, prompts):
        scores = super().score(videos, prompts)
        return Scores(scores.values, torch.tensor([[True, False]]).expand(len(videos), 2))


def trainer(out, rewards=(brightness,), **more):
    settings = recipe(out) | more
    return Trainer(GaussianModel(), rewards, settings, ["a", "b", "c"], console=Console(quiet=True))


def entry(**values):
    return load_recipe({"rewards": [{"type": f"{__name__}:Preset", **values}]})


def test_presets_name_weights():
    assert build.build_rewards(entry(weights="B"))[1] == (0.5, 1.0)
    assert build.build_rewards(entry(weights={"TA": 3}))[1] == (1.0, 3.0)
    with pytest.raises(ConfigError, match="no preset 'C'; it has A, B"):
        build.build_rewards(entry(weights="C"))
    with pytest.raises(ConfigError, match="has the scores VQ, TA, not 'XY'"):
        build.build_rewards(entry(weights={"XY": 1}))


def test_a_scorer_that_compares_sees_whole_groups(tmp_path):
    rank = Rank()
    run = trainer(tmp_path, [rank, brightness], policy=recipe(tmp_path)["policy"] | {"batch_size": 2})
    metrics = run.loop.iterate()
    assert rank.seen == [(4, {"a"}), (4, {"b"})] or [count for count, _ in rank.seen] == [4, 4]
    assert all(len(texts) == 1 for _, texts in rank.seen)
    assert metrics["reward/failed"] == 0


@pytest.mark.slow
def test_monitors_watch_and_change_nothing(tmp_path):
    runs = {}
    for name, monitors in (("without", []), ("with", [{"type": f"{__name__}:Sulking"}])):
        runs[name] = trainer(tmp_path / name, monitors=monitors)
        runs[name].train()
    weights = [[p.detach() for p in run.model.module.parameters()] for run in runs.values()]
    assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True))
    rows = read_metrics(tmp_path / "with" / "metrics.jsonl")
    assert [row["step"] for row in rows if "held_out/mood" in row] == [3, 6]
    assert not any("held_out/grudge" in row for row in rows)  # a failure is no number
    base = json.loads((tmp_path / "with" / "samples" / "000000" / "scores.json").read_text())
    assert base["grudge"] == [None, None]
    assert all(isinstance(x, float) for x in base["mood"])
    with pytest.raises(ConfigError, match="not trained on, so its scores have no weights"):
        trainer(tmp_path / "wrong", monitors=[{"type": f"{__name__}:Preset", "weights": "A"}])


@pytest.mark.parametrize("aggregation", ["rewards", "advantages"])
def test_both_ways_to_combine_scores_train(tmp_path, aggregation):
    def loud(videos, prompts):
        return [1000 * x for x in brightness(videos, prompts)]

    policy = recipe(tmp_path)["policy"] | {"aggregation": aggregation}
    run = trainer(tmp_path, [brightness, loud], policy=policy)
    before = [p.detach().clone() for p in run.model.module.parameters()]
    run.loop.iterate()
    assert any(not torch.equal(a, b) for a, b in zip(before, run.model.module.parameters(), strict=True))
