"""A clip as scorers are shown it, and its degraded copies."""

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
    """What scorers that hear are shown: a batch of one, with its sound. None: there is nothing to hear."""

    def shown(self, uses_audio: bool) -> tuple[Videos, str]:
        """A batch of one; and why its sound cannot be had, where it should have one."""
        try:
            if uses_audio and self.hear:
                return self.hear(), ""
        except (Unreadable, OSError) as error:
            return Videos(self.load()[None]), str(error)
        return Videos(self.load()[None]), ""


def degraded(name: str | None, videos: Videos, seed: int) -> Videos | None:
    """A copy of one clip with its picture or its sound degraded; none if there is no sound to degrade."""
    if name is None:
        return videos
    if name in DEGRADATIONS:
        return replace(videos, frames=degrade(name, videos.frames[0], seed)[None])
    if videos.sound is None or not videos.sound.numel() or not videos.sample_rate:
        return None
    return replace(videos, sound=degrade_sound(name, videos.sound[0], videos.sample_rate, seed)[None])
