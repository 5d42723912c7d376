"""A clip in the form that scorers take, and its degraded copies."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor

from sage_grpo.core.protocols import Prompt, Videos
from sage_grpo.evaluation.audit.degrade import DEGRADATIONS, degrade
from sage_grpo.evaluation.audit.degrade_sound import degrade_sound
from sage_grpo.evaluation.clips import Unreadable


@dataclass(frozen=True)
class Clip:
    name: str
    prompt: Prompt
    load: Callable[[], Tensor]
    hear: Callable[[], Videos] | None = None
    """Returns a batch of one with its sound, for scorers that hear. None if there is nothing to hear."""

    def shown(self, uses_audio: bool) -> tuple[Videos, str]:
        """Return the clip as a batch of one, and why its sound cannot be read, if it should have one."""
        try:
            if uses_audio and self.hear:
                return self.hear(), ""
        except (Unreadable, OSError) as error:
            return Videos(self.load()[None]), str(error)
        return Videos(self.load()[None]), ""


def degraded(name: str | None, videos: Videos, seed: int) -> Videos | None:
    """Return a batch of one with its frames or its sound degraded; None if there is no sound to degrade.

    `name` is that of the degradation; None returns the clip as it is.
    """
    if name is None:
        return videos
    if name in DEGRADATIONS:
        return replace(videos, frames=degrade(name, videos.frames[0], seed)[None])
    if videos.sound is None or not videos.sound.numel() or not videos.sample_rate:
        return None
    return replace(videos, sound=degrade_sound(name, videos.sound[0], videos.sample_rate, seed)[None])
