"""Evaluation of a model of shapes on fresh videos: their scores, and how they compare with rendered clips.

The seeds are fixed, so the videos of two models form pairs of equal prompt and seed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sage_grpo.config import RecipeConfig
from sage_grpo.core.loop import Loop
from sage_grpo.core.protocols import Prompt, Videos
from sage_grpo.core.sampler import generate
from sage_grpo.core.video_model import VideoModel
from sage_grpo.lab.clips import as_clips
from sage_grpo.lab.shapes.flaws import flawed
from sage_grpo.lab.shapes.model import ShapesModel
from sage_grpo.lab.shapes.reward import ShapesReward
from sage_grpo.lab.shapes.world import Fit, all_prompts, as_asked, fit, kept_out, parse_prompt
from sage_grpo.training.callbacks import averaged

FIRST_SEED = 1_000_000  # away from the seeds of sample videos
BATCH = 48  # videos made and looked at between two reports of progress
SETTING_B = (0.5, 0.5, 1.0)  # weights of VQ, MQ and TA in the paper


@dataclass(frozen=True)
class Evaluation:
    """The measures of N fresh videos of one model, one row per video.

    The same row of two evaluations has the same prompt and seed. Post-training used only `scores`; all other measures
    are held out.
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
        """Boolean mask (N,): True for each video whose prompt was kept out of post-training."""
        return torch.tensor([kept_out(prompt) for prompt in self.prompts])

    def reward(self, weights: Sequence[float]) -> Tensor:
        """Return the weighted sum of VQ, MQ and TA of each video, (N,).

        `weights` are in this order. Use the same ones for all runs, whatever each was trained on, so that the sums can
        be compared.
        """
        return self.scores @ torch.tensor(weights, dtype=self.scores.dtype)

    @property
    def flawed(self) -> Tensor:
        """Boolean mask (N,): True for each video that flickers or halts."""
        return flawed(self.videos)

    @property
    def accuracy(self) -> Tensor:
        """For each video 1 if its shape, colour and direction are all as prompted, else 0, (N,)."""
        return self.correct.all(1).double()


def evaluate(
    model: VideoModel,
    config: RecipeConfig,
    samples: int = 240,
    first_seed: int = FIRST_SEED,
    emit: Callable[[int], None] = lambda done: None,
    also: Callable[[Videos, Fit], None] = lambda videos, fitted: None,
) -> Evaluation:
    """Generate `samples` videos with the plain ODE (no noise is added), and return their measures.

    The 48 prompts come in turn. With fewer than 96 samples there are fewer prompts, so that each has at least two
    videos. `emit` is called with the number of videos made so far, and `also` with each batch of videos and its `Fit`.
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
    scorer = model.scorer if isinstance(model, ShapesModel) else ShapesReward
    scores = scorer().score(frames, prompts).values.double()
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
    """Return the root-mean-square difference of two clips of the same prompt, averaged over pairs and prompts.

    `prompts` is the number of prompts. Clip i of `clips` (N, …) belongs to prompt i modulo `prompts`.
    """
    flat = clips.flatten(1)
    apart = [torch.pdist(flat[i::prompts]).mean() / flat.shape[1] ** 0.5 for i in range(prompts)]
    return torch.stack(apart).mean().item()


def evaluate_run(loop: Loop, config: RecipeConfig, samples: int = 240) -> Evaluation:
    """Evaluate a run's model with the moving average of its weights, if the run keeps one, else with its weights."""
    with averaged(loop):
        return evaluate(loop.model, config, samples)
