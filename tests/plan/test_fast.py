"""What a trained video costs: every saving counted by hooks and by the plan, and what the fast recipes gain."""

import json

import pytest

pytest.importorskip("diffusers")

import torch
from typer.testing import CliRunner

from sage_grpo.cli import app
from sage_grpo.config import load_recipe
from sage_grpo.config.load import shipped_recipes
from sage_grpo.core.loop import Loop
from sage_grpo.models import contract
from sage_grpo.models.sd3 import StableDiffusion3
from sage_grpo.preflight.plan.counts import count
from support import FunctionReward, mean_brightness
from sweeps import further
from tiny_models import tiny_model

FAST = [name for name in shipped_recipes() if name.endswith("-fast") and not name.startswith("lab")]
GPU = {"wan-1.3b-24gb-lora-fast": "rtx4090-24g"}
# Every place of a window once: it moves on in each iteration. A fixed anchor is never just renewed.
ONE = {"size": 1, "start": "progressive", "every": 1}
HALF = ONE | {"range": [0, 0.5]}
SECOND = {"steps": 10, "order": 2, "window": ONE}
ROWS = [  # sampling, guidance, iterations, passes per video
    ({}, 7.0, 1, 230),
    ({"window": {"size": 4, "start": 0}}, 7.0, 1, 80),
    ({"window": {"size": 2, "start": 0}}, 7.0, 1, 60),
    ({"window": {"size": 1, "start": 0}}, 7.0, 1, 50),
    ({"window": ONE}, 7.0, 19, 36.5),
    ({"window": HALF}, 7.0, 10, 43.25),
    (SECOND, 7.0, 9, 24),
    (SECOND | {"tail": 0.5}, 7.0, 9, 19.56),
    (SECOND, 1.0, 9, 12),
    (SECOND | {"tail": 0.5}, 1.0, 9, 9.78),
]


@pytest.mark.slow
@pytest.mark.parametrize(("sampling", "guidance", "iterations", "passes"), ROWS)
def test_what_a_video_costs(sampling, guidance, iterations, passes):
    """With recomputation a trained pass counts four: forward, backward twice, and forward again."""
    config = load_recipe(
        {
            "sampling": sampling,
            "policy": {"prompts_per_iteration": 1, "num_generations": 4, "batch_size": 4},
            "kl": {"anchor": "fixed"},
            "tuning": {"gradient_checkpointing": True},
            "run": {"iterations": iterations, "sample_every": 0},
            "gauge": {"every": 0},
        }
    )
    model, seen = tiny_model(StableDiffusion3, {"gradient_checkpointing": True}, guidance_scale=guidance), [0]

    def look(module, inputs, named):
        seen[0] += len(named["hidden_states"]) * (4 if torch.is_grad_enabled() else 1)

    model.module.register_forward_pre_hook(look, with_kwargs=True)
    prompts = contract.prompts_for(model)
    still = torch.optim.SGD(model.module.parameters(), lr=0.0)
    loop = Loop(model, FunctionReward(mean_brightness), lambda start, n: (prompts * n)[:n], config, still)
    loop._checked, loop.updates = True, 1
    loop.bank.save("anchor")
    loop.run(iterations)
    assert seen[0] / iterations / 4 == pytest.approx(passes, abs=0.01)
    planned = count(config, guided=guidance != 1)
    per_iteration = planned.forward + 2 * planned.backward
    first = 1 if iterations == 1 else 1 / iterations  # the plan leaves out the anchor before the first update
    spared = first * 4 * (2 if guidance != 1 else 1) * (config.trained_steps)
    assert (per_iteration + spared) / 4 == pytest.approx(passes, abs=0.01)


@pytest.mark.parametrize("name", FAST)
def test_fast_recipes_make_a_fifth_of_the_passes(name):
    def passes(recipe):
        config = load_recipe(recipe)
        made = count(config, guided=True)
        return (made.rollout + made.anchor + made.training + made.again + 2 * made.backward) / config.rollouts

    assert passes(name.removesuffix("-fast")) > 5 * passes(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [further(name) for name in FAST])
def test_fast_recipes_make_five_times_the_videos_on_the_same_gpus(name):
    """With no more memory."""

    def planned(recipe):
        said = CliRunner().invoke(app, ["plan", recipe, "--gpu", GPU.get(name, "h100-80g"), "--json"])
        return json.loads(said.stdout)

    fast, base = planned(name), planned(name.removesuffix("-fast"))
    assert fast["gpus"] == base["gpus"]
    assert fast["videos_per_gpu_hour"] >= 5 * base["videos_per_gpu_hour"]
    assert fast["memory_per_rank"]["peak"] <= base["memory_per_rank"]["peak"]
