"""Fresh videos with sound, compared with the known world: whether each sounds as its shape moves."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sage_grpo.config import RecipeConfig
from sage_grpo.core.protocols import Prompt, VideoModel, Videos
from sage_grpo.lab.shapes import evaluate as shapes
from sage_grpo.lab.shapes.world import Fit
from sage_grpo.lab.tones.phase import gaps
from sage_grpo.lab.tones.reward import TonesReward

NEAR = 0.1  # octaves: about a tone of the scale, which the ear of a layman lets pass


@dataclass(frozen=True)
class Evaluation:
    """What was found in the videos of a model, a row for each. Rows of equal index share prompt and seed.

    Only `scores` were ever trained on.
    """

    pictures: shapes.Evaluation
    videos: Videos
    gap: Tensor  # octaves between what is heard and what the nearest real clip sounds like
    scores: Tensor

    @property
    def fits(self) -> Tensor:
        """Which videos sound as they look, (N,), boolean."""
        return self.gap < NEAR


def evaluate(
    model: VideoModel, config: RecipeConfig, samples: int, emit: Callable[[int], None] = lambda done: None
) -> Evaluation:
    """Evaluate a model on `samples` videos with sound by the plain ODE, over all prompts in turn."""
    made: list[Videos] = []
    found: list[Tensor] = []

    def listen(videos: Videos, fitted: Fit) -> None:
        if videos.sound is None:
            raise ValueError("these videos have no sound")
        made.append(videos)
        found.append(gaps(videos.sound, fitted.scene))

    pictures = shapes.evaluate(model, config, samples, emit=emit, also=listen)
    videos, prompts = Videos.joined(made), [Prompt(text) for text in pictures.prompts]
    scores = TonesReward().submit(videos, prompts)().values[:, 0].double()
    return Evaluation(pictures, videos, torch.cat(found), scores)
