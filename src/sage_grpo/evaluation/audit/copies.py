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
    """Returns the clip with its sound as a batch of one, for scorers that use the sound; None for a silent clip."""

    def shown(self, uses_audio: bool) -> tuple[Videos, str]:
        """Return the clip as a batch of one, and the reason why its sound cannot be read, an empty text if it can.

        The sound is read only with `uses_audio`.
        """
        try:
            if uses_audio and self.hear:
                return self.hear(), ""
        except (Unreadable, OSError) as error:
            return Videos(self.load()[None]), str(error)
        return Videos(self.load()[None]), ""


def degraded(name: str | None, videos: Videos, seed: int) -> Videos | None:
    """Return the clip, a batch of one, with its frames or its sound degraded. `name=None` returns it as it is.

    Return None if the degradation `name` is one of sound and the clip has no sound.
    """
    if name is None:
        return videos
    if name in DEGRADATIONS:
        return replace(videos, frames=degrade(name, videos.frames[0], seed)[None])
    if videos.sound is None or not videos.sound.numel() or not videos.sample_rate:
        return None
    return replace(videos, sound=degrade_sound(name, videos.sound[0], videos.sample_rate, seed)[None])
