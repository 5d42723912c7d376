"""Direct measurements of the base model. Without training, they take seconds and have tight intervals."""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from sage_grpo.config import RecipeConfig, load_recipe
from sage_grpo.core.callback import Callback
from sage_grpo.core.loop import Loop
from sage_grpo.core.protocols import Prompt
from sage_grpo.core.rollout import sample, velocity_at
from sage_grpo.core.update import UpdateResult
from sage_grpo.data.prompts import open_prompts
from sage_grpo.lab.clips import as_clips
from sage_grpo.lab.first.model import FirstShapesModel
from sage_grpo.lab.shapes.world import all_prompts, fit, random_scene, render
from sage_grpo.math.equalizer import equalizer, gradient_scale
from sage_grpo.math.kernels import KernelTable, kernel_table
from sage_grpo.math.schedule import sigma_schedule
from sage_grpo.training.build import build_model, build_rewards
from sage_grpo.training.drift_gauge import diversity

AT_ONCE = 32
ETA = 0.7  # of rollouts that are compared


def table_of(config: RecipeConfig, kernel: str, eta: float, *, noisy_end: bool = False) -> KernelTable:
    table = kernel_table(kernel, sigma_schedule(config.sampling.steps, config.sampling.shift), eta)
    return table if noisy_end else table.ode_outside(table.sigma_next > 0)


def noise_after_a_step(kernel: str, clips: int = 256) -> dict[str, list[float]]:
    """Return the noise that is left after one sampling step from exact states of rendered clips.

    Each list has one value per inner step. `sigma` is the noise level before the step, `measured` the noise that the
    model leaves, and `theory` that of a perfect denoiser. Both noises are relative to the next σ.
    """
    config = load_recipe("lab-paper")
    model, table = FirstShapesModel.from_pretrained(), table_of(config, kernel, 0.7)
    generator = torch.Generator().manual_seed(0)
    scene = random_scene(clips, generator)
    x0, condition = model.autoencoder.encode(render(scene)), model.encode([Prompt(text) for text in scene.prompts])
    out: dict[str, list[float]] = {"sigma": [], "theory": [], "measured": []}
    for t in range(1, len(table) - 1):  # inside, where both ends have noise
        sigma, following, a, b, s = (c[t].item() for c in (table.sigma, table.sigma_next, table.a, table.b, table.s))
        z, noise = torch.randn(2, *x0.shape, generator=generator)
        x = (1 - sigma) * x0 + sigma * z
        with torch.no_grad():
            v = velocity_at(model, x, sigma, condition)
        left = (a * x + b * v + s * noise) - (1 - following) * x0
        out["sigma"].append(sigma)
        out["theory"].append(((a * sigma + b) ** 2 + s**2) ** 0.5 / following)
        out["measured"].append(left.square().mean().sqrt().item() / following)
    return out


def rollouts(
    kernel: str, eta: float, count: int, *, first: int = 0, group: int = 1, noisy_end: bool = False
) -> Iterator[Tensor]:
    """Yield `count` SDE rollouts of the base model, over all prompts in turn, as batches of clips (N, 3, F, H, W).

    Each `group` rollouts in a row share prompt and initial noise. `first` is the index of the first rollout.
    """
    config = load_recipe("lab-paper")
    model, table = build_model(config), table_of(config, kernel, eta, noisy_end=noisy_end)
    texts = all_prompts()
    for i in range(first, first + count, AT_ONCE):
        these = range(i, min(i + AT_ONCE, first + count))
        keys = [("quality", j) for j in these]
        shared = [("quality", j // group) for j in these]
        prompts = [Prompt(texts[j // group % len(texts)]) for j in these]
        yield as_clips(model.decode(sample(model, prompts, table, shared, keys).x0))


def rollout_distances(kernel: str, *, noisy_end: bool, count: int, first: int = 0) -> list[float]:
    """Return the distance of each rollout's clip to the nearest clip that the world can render.

    Rollouts of equal index share prompt and noise across kernels. `noisy_end` says whether the last step adds noise.
    """
    made = rollouts(kernel, ETA, count, first=first, noisy_end=noisy_end)
    return [distance for clips in made for distance in fit(clips).distance.tolist()]


def spread(kernel: str, eta: float, count: int = 960) -> float:
    """Return the mean distance of clips from rollouts that begin with the same prompt and noise, in groups of four."""
    return diversity(torch.cat(list(rollouts(kernel, eta, count, group=4))), 4)


def match_exploration(kernel: str, reference: str) -> float:
    """Return the η at which `kernel` spreads rollouts as far apart as the kernel `reference` does at `ETA`.

    The spread changes little with η, so few rollouts cannot determine this η.
    """
    target, low, high = spread(reference, ETA), 0.05, 3.0
    if not spread(kernel, low) < target < spread(kernel, high):
        raise ValueError(f"no η from {low} to {high} lets {kernel} explore as far as {reference} does")
    for _ in range(6):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if spread(kernel, middle) < target else (low, middle)
    return round(math.sqrt(low * high), 3)


class _Norms(Callback):
    def __init__(self) -> None:
        self.by_step: dict[int, list[float]] = {}

    def on_update(self, loop: Loop, result: UpdateResult) -> None:
        self.by_step.setdefault(result.steps[0], []).append(result.grad_norm)


def gradient_by_step(kernel: str, *, equalize: bool, iterations: int = 3) -> dict[str, Any]:
    """Return the norm of the parameter gradient at each timestep alone, with the weights held still.

    Each list has one value per trained timestep: noise level, measured norm, predicted scale of the norm, and factor of
    the equalizer. `equalize` says whether the loss uses this factor.
    """
    base = load_recipe("lab-paper", [f"sampling.kernel={kernel}"])
    trained = base.sampling.stochastic_steps
    config = load_recipe(
        "lab-paper",
        [
            f"sampling.kernel={kernel}",
            f"policy.equalizer={str(equalize).lower()}",
            "policy.timestep_fraction=1.0",
            "policy.num_iterations=1",
            f"policy.num_minibatches={trained}",
            "policy.max_grad_norm=1e9",
            "kl.anchor=none",
            "kl.old_weight=0",
            "policy.clip=1.0",
        ],
    )
    model = build_model(config)
    reward, weights = build_rewards(config)
    config = config.model_copy(update={"policy": config.policy.model_copy(update={"reward_weights": weights})})
    norms = _Norms()
    still = torch.optim.SGD(model.module.parameters(), lr=0.0)
    prompts = open_prompts(all_prompts(), seed=0)
    loop = Loop(model, reward, prompts, config, still, callbacks=[norms])
    loop.run(iterations)
    steps = sorted(norms.by_step)
    return {
        "sigma": [loop.table.sigma[t].item() for t in steps],
        "norm": [sum(norms.by_step[t]) / len(norms.by_step[t]) for t in steps],
        "scale": [gradient_scale(loop.table)[t].item() for t in steps],
        "equalizer": [equalizer(loop.table)[t].item() for t in steps],
    }
