"""Fresh videos of numbers, read by OCR and by a second reader that no reward knows; equal seeds make pairs."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sage_grpo.config import RecipeConfig
from sage_grpo.core.loop import Loop
from sage_grpo.core.protocols import Prompt, VideoModel
from sage_grpo.core.sampler import generate
from sage_grpo.lab.clips import as_clips
from sage_grpo.lab.digits import world as text
from sage_grpo.rewards.ocr import OCRReward, fold, similarity, wanted_text
from sage_grpo.training.callbacks import averaged
from sage_grpo.training.drift_gauge import diversity

FIRST_SEED = 1_000_000  # away from the seeds of sample videos
GROUPS, GROUP = 24, 4  # prompts and videos of each that diversity is measured on


@dataclass(frozen=True)
class Evaluation:
    """What was found in the videos of a model, a row for each. Rows of equal index share prompt and seed.

    Training saw readings of the first frame only.
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
        """Return 1 for each video whose frame OCR reads as the number and nothing else, and 0 for the others, (N,)."""
        pairs = zip(self.readings, self.wanted, strict=True)
        return torch.tensor([fold(read[frame]) == fold(target) for read, target in pairs]).double()

    def characters(self, frame: int = 0) -> Tensor:
        """Return 1 − edit distance over the longer length, (N,). At the first frame it is the reward itself."""
        pairs = zip(self.readings, self.wanted, strict=True)
        return torch.tensor([similarity(read[frame], target) for read, target in pairs], dtype=torch.float64)


def evaluate(
    model: VideoModel, config: RecipeConfig, samples: int, emit: Callable[[int], None] = lambda done: None
) -> Evaluation:
    """Evaluate a model on `samples` videos by the plain ODE, of numbers that no training saw."""
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
    """Return two diversities of videos of one prompt: in what the prompt leaves open, and of pixels."""
    texts = [t for t in text.fresh_prompts(GROUPS) for _ in range(GROUP)]
    first = FIRST_SEED * 2
    x0 = generate(model, [Prompt(t) for t in texts], config, range(first, first + len(texts)))
    clips = as_clips(model.decode(x0))
    return diversity(text.as_asked(text.fit(clips, texts), texts), GROUP), diversity(clips, GROUP)


def evaluate_run(loop: Loop, config: RecipeConfig, samples: int) -> Evaluation:
    """Evaluate a run's averaged weights if it keeps them, else its last ones."""
    with averaged(loop):
        return evaluate(loop.model, config, samples)
