"""Evaluation of a model of shapes with sound on fresh videos: whether each tone fits the place of its shape."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sage_grpo.config import RecipeConfig
from sage_grpo.core.protocols import Prompt, Videos
from sage_grpo.core.video_model import VideoModel
from sage_grpo.lab.shapes import evaluate as shapes
from sage_grpo.lab.shapes.world import Fit
from sage_grpo.lab.tones.phase import gaps
from sage_grpo.lab.tones.reward import TonesReward

NEAR = 0.1  # octaves: about a tone of the scale, which the ear of a layman lets pass


@dataclass(frozen=True)
class Evaluation:
    """The measures of N fresh videos of one model, one row per video.

    The same row of two evaluations has the same prompt and seed. Post-training used only `scores`; all other measures
    are held out.
    """

    pictures: shapes.Evaluation
    videos: Videos
    gap: Tensor  # octaves between what is heard and what the nearest real clip sounds like
    scores: Tensor

    @property
    def fits(self) -> Tensor:
        """Boolean mask (N,): True for each video whose `gap` is less than `NEAR` octaves: it sounds as it looks."""
        return self.gap < NEAR


def evaluate(
    model: VideoModel, config: RecipeConfig, samples: int, emit: Callable[[int], None] = lambda done: None
) -> Evaluation:
    """Generate `samples` videos with sound with the plain ODE (no noise is added), and return their measures.

    All prompts come in turn. `emit` is called with the number of videos made so far.
    """
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
