"""The interface through which the algorithm uses a reward."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

from torch import Tensor

from sage_grpo.core.protocols import Prompt, Videos
from sage_grpo.core.scores import Scores


class Reward:
    """The base class of rewards, which turn videos into scores.

    Derive from it, define `names` and `score`, and override the defaults that do not fit. Callers use only the members
    below, so a wrapper around a reward must forward all of them.

    Examples:
        >>> import torch
        >>> class Brightness(Reward):
        ...     names = ("brightness",)
        ...     def score(self, videos, prompts):
        ...         return Scores.of(videos.double().flatten(1).mean(1, keepdim=True) / 255)
        >>> dark = torch.full((2, 9, 8, 8, 3), 51, dtype=torch.uint8)
        >>> Brightness().score(dark, [Prompt("a cat"), Prompt("a dog")]).values.tolist()
        [[0.2], [0.2]]
    """

    names: Sequence[str] = ()
    """Names of the R scores of each video. Empty in a class whose instances have different names."""
    groupwise: bool = False
    """Whether the reward compares the videos of a prompt, and needs all of them in one call."""
    uses_audio: bool = False
    """Whether the reward also judges the audio track; videos without audio then get no score."""
    wait_seconds: float = 0.0
    """Seconds that callers have waited for scores of this reward, in total."""
    reasons: Mapping[int, str] = MappingProxyType({})
    """Why videos of the last call have no valid score: a reason by the index of each such video in the batch."""
    lower_is_better: Sequence[str] = ()
    """Names of the scores for which a lower value is better."""
    presets: Mapping[str, Mapping[str, float]] = MappingProxyType({})
    """Sets of weights that a recipe can choose by name; each maps names of scores to weights."""
    not_trainable_because: str | None = None
    """Why the reward may only monitor a run, and not train it; None if a run may train on it."""
    laboratory: bool = False
    """Whether the reward judges only videos of the laboratory's made-up world."""
    device_bytes: int = 0
    """Bytes of the reward's weights, as memory plans count them."""
    follows_videos_device: bool = False
    """Whether the reward's weights move to the device of the videos, unless its option `device` says otherwise. If
    False, they stay on the host."""

    def score(self, videos: Tensor, prompts: Sequence[Prompt]) -> Scores:
        """Return the scores (B, R) of B videos, given as uint8 frames (B, F, H, W, 3) with one prompt per video."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it scores")

    def frame_indices(self, frames: int) -> Sequence[int] | None:
        """Return the indices of the frames that the reward looks at in a video of `frames` frames, or None for all.

        Callers may pass black frames in place of the others.
        """
        return None

    def submit(self, videos: Videos, prompts: Sequence[Prompt]) -> Callable[[], Scores]:
        """Start scoring B videos, and return a function that waits for their scores (B, R).

        Runs call this method, so that a scorer on another machine works while the caller makes the next videos.
        Override it to use the audio track or the frame rate, which `score` does not get.
        """
        return partial(self.score, videos.frames, prompts)
