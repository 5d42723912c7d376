"""Fresh samples of a model, scored and held against the known world; equal seeds make pairs."""

from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from sage_grpo.config import RecipeConfig
from sage_grpo.core.loop import Loop
from sage_grpo.core.protocols import Prompt, VideoModel
from sage_grpo.core.sampler import generate
from sage_grpo.lab.shapes.reward import ShapesReward
from sage_grpo.lab.shapes.world import all_prompts, fit, parse_prompt
from sage_grpo.training.callbacks import EMA

FIRST_SEED = 1_000_000  # away from the seeds of sample videos
WEIGHTS = (0.5, 0.5, 1.0)  # setting B


@dataclass(frozen=True)
class Evaluation:
    """One row a video; rows of equal index share prompt and seed. Only `scores` were ever trained on."""

    prompts: list[str]
    videos: Tensor
    scores: Tensor  # VQ, MQ, TA
    distance: Tensor  # to the manifold of the world
    correct: Tensor  # shape, colour and direction as prompted
    diversity: float  # mean distance of two videos of one prompt

    @property
    def reward(self) -> Tensor:
        return self.scores @ torch.tensor(WEIGHTS, dtype=self.scores.dtype)

    @property
    def accuracy(self) -> Tensor:
        """All three as prompted."""
        return self.correct.all(1).double()


def evaluate(model: VideoModel, config: RecipeConfig, samples: int = 240, first_seed: int = FIRST_SEED) -> Evaluation:
    """`samples` videos by the plain ODE, over the 48 prompts in turn, or fewer so that each comes twice."""
    texts = all_prompts()
    texts = texts[:: -(-len(texts) // max(samples // 2, 1))]
    prompts = [Prompt(texts[i % len(texts)]) for i in range(samples)]
    x0 = generate(model, prompts, config, range(first_seed, first_seed + samples))
    videos = model.decode(x0)
    fitted = fit(x0)
    expected = torch.tensor([parse_prompt(prompt.text) for prompt in prompts])
    got = torch.stack([fitted.scene.shape, fitted.scene.colour, fitted.scene.direction], 1)
    scores = ShapesReward().score(videos, prompts).values.double()
    per_prompt = [x0[i :: len(texts)].flatten(1) for i in range(len(texts))]
    diversity = torch.stack([torch.pdist(x).mean() / x.shape[1] ** 0.5 for x in per_prompt]).mean().item()
    return Evaluation([p.text for p in prompts], videos, scores, fitted.distance.double(), got == expected, diversity)


def evaluate_run(loop: Loop, config: RecipeConfig, samples: int = 240) -> Evaluation:
    """The averaged weights if the run keeps them, else its last ones."""
    with loop.bank.using(EMA) if EMA in loop.bank else nullcontext():
        return evaluate(loop.model, config, samples)
