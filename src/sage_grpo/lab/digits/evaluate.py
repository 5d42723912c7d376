"""Evaluation of a model of four-digit numbers: fresh videos, read by OCR and by a second reader that no reward uses.

The seeds are fixed, so the videos of two models form pairs of equal prompt and seed.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sage_grpo.config import RecipeConfig
from sage_grpo.core.loop import Loop
from sage_grpo.core.protocols import Prompt
from sage_grpo.core.sampler import generate
from sage_grpo.core.video_model import VideoModel
from sage_grpo.lab.clips import as_clips
from sage_grpo.lab.digits import world as text
from sage_grpo.rewards.ocr import OCRReward, fold, similarity, wanted_text
from sage_grpo.training.callbacks import averaged
from sage_grpo.training.drift_gauge import diversity

FIRST_SEED = 1_000_000  # away from the seeds of sample videos
GROUPS, GROUP = 24, 4  # prompts and videos of each that diversity is measured on


@dataclass(frozen=True)
class Evaluation:
    """The measures of N fresh videos of one model, one row per video.

    The same row of two evaluations has the same prompt and seed. Post-training used only readings of the first frame;
    all other measures are held out.
    """

    prompts: list[str]
    videos: Tensor
    readings: list[list[str]]  # of the first and the last frame
    wanted: list[str]
    distance: Tensor  # to the true rendering of the prompt
    second: Tensor  # digits that the second reader finds right, (N, 4)
    colour: Tensor  # as prompted
    tint: Tensor  # distance of the mean colour from the one asked for
    diversity: float  # mean distance of two videos of one prompt in what it leaves open: place, drift and size
    pixel_diversity: float  # of their pixels, where a mistake counts as variety

    def exact(self, frame: int = 0) -> Tensor:
        """Return 1 for each video in which OCR reads the prompted number and nothing else, and 0 for the others, (N,).

        `frame` is 0 for the reading of the first frame, or -1 for the last.
        """
        pairs = zip(self.readings, self.wanted, strict=True)
        return torch.tensor([fold(read[frame]) == fold(target) for read, target in pairs]).double()

    def characters(self, frame: int = 0) -> Tensor:
        """Return the similarity (N,), 0 to 1, of what OCR reads to the prompted number.

        It is 1 − edit distance / length of the longer text. `frame` is 0 for the first frame, where the similarity is
        the reward itself, or -1 for the last.
        """
        pairs = zip(self.readings, self.wanted, strict=True)
        return torch.tensor([similarity(read[frame], target) for read, target in pairs], dtype=torch.float64)


def evaluate(
    model: VideoModel, config: RecipeConfig, samples: int, emit: Callable[[int], None] = lambda done: None
) -> Evaluation:
    """Generate `samples` videos of held-out numbers with the plain ODE (no noise is added), and return their measures.

    `emit` is called with the number of videos made so far.
    """
    reader = OCRReward(frames=2, detect=False)
    texts, size = text.fresh_prompts(samples), config.policy.batch_size
    prompts = [Prompt(t) for t in texts]
    parts, readings = [], []
    for i in range(0, samples, size):
        part = prompts[i : i + size]
        x0 = generate(model, part, config, range(FIRST_SEED + i, FIRST_SEED + i + len(part)))
        videos = model.decode(x0)
        readings += [[reader.read(video[0]), reader.read(video[-1])] for video in videos.numpy()]
        parts.append(videos)
        emit(len(readings))
    videos = torch.cat(parts)
    fitted = text.fit(as_clips(videos), texts)
    scenes = [text.parse_prompt(t) for t in texts]
    right = fitted.digits == torch.tensor([digits for digits, _ in scenes])
    colour = fitted.colour == torch.tensor([c for _, c in scenes])
    targets = [wanted_text(p) or "" for p in prompts]
    return Evaluation(
        texts,
        videos,
        readings,
        targets,
        fitted.distance.double(),
        right,
        colour.double(),
        fitted.tint.double(),
        *diversities(model, config),
    )


def diversities(model: VideoModel, config: RecipeConfig) -> tuple[float, float]:
    """Return the diversity of videos of one prompt, measured in two ways on `GROUPS` prompts with `GROUP` videos each.

    The first is the mean distance in what the prompt leaves open: place, drift and size. The second is the mean
    distance of pixels, where a mistake counts as variety.
    """
    texts = [t for t in text.fresh_prompts(GROUPS) for _ in range(GROUP)]
    first = FIRST_SEED * 2
    x0 = generate(model, [Prompt(t) for t in texts], config, range(first, first + len(texts)))
    clips = as_clips(model.decode(x0))
    return diversity(text.as_asked(text.fit(clips, texts), texts), GROUP), diversity(clips, GROUP)


def evaluate_run(loop: Loop, config: RecipeConfig, samples: int) -> Evaluation:
    """Evaluate a run's model with the moving average of its weights, if the run keeps one, else with its weights."""
    with averaged(loop):
        return evaluate(loop.model, config, samples)
