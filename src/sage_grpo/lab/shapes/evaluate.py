"""Fresh samples of a model, scored and compared with the known world; equal seeds make pairs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sage_grpo.config import RecipeConfig
from sage_grpo.core.loop import Loop
from sage_grpo.core.protocols import Prompt, VideoModel, Videos
from sage_grpo.core.sampler import generate
from sage_grpo.lab.clips import as_clips
from sage_grpo.lab.shapes.reward import ShapesReward
from sage_grpo.lab.shapes.world import Fit, all_prompts, as_asked, fit, kept_out, parse_prompt
from sage_grpo.training.callbacks import averaged

FIRST_SEED = 1_000_000  # away from the seeds of sample videos
BATCH = 48  # videos made and looked at between two reports of progress
SETTING_B = (0.5, 0.5, 1.0)  # weights of VQ, MQ and TA in the paper


@dataclass(frozen=True)
class Evaluation:
    """What was found in the videos of a model, a row for each. Rows of equal index share prompt and seed.

    Only `scores` were ever trained on.
    """

    prompts: list[str]
    videos: Tensor
    scores: Tensor  # VQ, MQ, TA
    distance: Tensor  # to the manifold of the world
    correct: Tensor  # shape, colour and direction as prompted
    diversity: float  # mean distance of two videos of one prompt in what it leaves open: place, speed and size
    pixel_diversity: float  # of their pixels, where a mistake counts as variety

    @property
    def never_seen(self) -> Tensor:
        """Which videos are of prompts that post-training was not given, (N,), boolean."""
        return torch.tensor([kept_out(prompt) for prompt in self.prompts])

    def reward(self, weights: Sequence[float]) -> Tensor:
        """Return the weighted sum of the scores, (N,).

        Runs are compared by one set of weights, whatever each was trained on.
        """
        return self.scores @ torch.tensor(weights, dtype=self.scores.dtype)

    @property
    def accuracy(self) -> Tensor:
        """1 for each video whose shape, colour and direction are as prompted, and 0 for the others, (N,)."""
        return self.correct.all(1).double()


def evaluate(
    model: VideoModel,
    config: RecipeConfig,
    samples: int = 240,
    first_seed: int = FIRST_SEED,
    emit: Callable[[int], None] = lambda done: None,
    also: Callable[[Videos, Fit], None] = lambda videos, fitted: None,
) -> Evaluation:
    """Evaluate a model on `samples` videos by the plain ODE, over the 48 prompts in turn.

    With few samples it takes fewer prompts, so that each comes twice. `also` is shown each batch with its nearest clips
    of the world.
    """
    texts = all_prompts()
    texts = texts[:: -(-len(texts) // max(samples // 2, 1))]
    prompts = [Prompt(texts[i % len(texts)]) for i in range(samples)]
    videos, distances, correct, opened = [], [], [], []
    for first in range(0, samples, BATCH):
        part = prompts[first : first + BATCH]
        seeds = range(first_seed + first, first_seed + first + len(part))
        made = model.render(generate(model, part, config, seeds))
        videos.append(made.frames.cpu())
        fitted = fit(as_clips(videos[-1]))
        also(made, fitted)
        expected = torch.tensor([parse_prompt(prompt.text) for prompt in part])
        got = torch.stack([fitted.scene.shape, fitted.scene.colour, fitted.scene.direction], 1)
        opened.append(as_asked(fitted.scene, [prompt.text for prompt in part]))
        distances.append(fitted.distance.double())
        correct.append(got == expected)
        emit(first + len(part))
    frames = torch.cat(videos)
    scores = ShapesReward().score(frames, prompts).values.double()
    return Evaluation(
        [p.text for p in prompts],
        frames,
        scores,
        torch.cat(distances),
        torch.cat(correct),
        mean_distance(torch.cat(opened), len(texts)),
        mean_distance(as_clips(frames), len(texts)),
    )


def mean_distance(clips: Tensor, prompts: int) -> float:
    """Return the mean distance per pixel of two clips of one prompt; clips (N, …) belong to the prompts in turn."""
    flat = clips.flatten(1)
    apart = [torch.pdist(flat[i::prompts]).mean() / flat.shape[1] ** 0.5 for i in range(prompts)]
    return torch.stack(apart).mean().item()


def evaluate_run(loop: Loop, config: RecipeConfig, samples: int = 240) -> Evaluation:
    """Evaluate a run's averaged weights if it keeps them, else its last ones."""
    with averaged(loop):
        return evaluate(loop.model, config, samples)
