"""Any Python function as a reward, and several rewards as one."""

import inspect
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sage_grpo.core.protocols import Prompt, Videos
from sage_grpo.core.reward import Reward
from sage_grpo.core.scores import Scores


class FunctionReward(Reward):
    """A reward computed by a Python function: `f(videos, prompts, **columns)` returns a list with a number per video.

    `videos` are uint8 frames (B, F, H, W, 3), `prompts` their texts. None, NaN and infinity in the list are failures,
    and mask the video. A column of the prompt file is passed by its name if every prompt of the batch has it and the
    function takes it. It is a list with a value per prompt.

    A function that takes `sound` gets the audio (B, channels, samples) from -1 to 1, and videos without audio are
    masked. It can also take `sample_rate` and `frame_rate`.
    """

    def __init__(self, function: Callable[..., Sequence[float | None]], name: str | None = None) -> None:
        self.function = function
        self.names = (name or getattr(function, "__name__", "reward").strip("<>"),)
        self._given, self._takes, self._takes_all = parameters(function)
        self.uses_audio = "sound" in self._takes

    def score(self, videos: Tensor, prompts: Sequence[Prompt]) -> Scores:
        return self._asked(Videos(videos), prompts)

    def submit(self, videos: Videos, prompts: Sequence[Prompt]) -> Callable[[], Scores]:
        return partial(self._asked, videos, prompts)

    def _asked(self, videos: Videos, prompts: Sequence[Prompt]) -> Scores:
        shared = set.intersection(*(set(prompt.columns) for prompt in prompts)) if prompts else set()
        names = shared - self._given if self._takes_all else shared & self._takes
        columns: dict[str, Any] = {name: [p.columns[name] for p in prompts] for name in sorted(names)}
        if self.uses_audio and videos.sound is None and "sound" not in columns:
            return Scores.failed(len(videos), 1)
        made = {"sound": videos.sound, "sample_rate": videos.sample_rate, "frame_rate": videos.frame_rate}
        columns = {name: value for name, value in made.items() if name in self._takes} | columns
        answer = self.function(videos.frames, [prompt.text for prompt in prompts], **columns)
        numbers = [float("nan") if x is None else float(x) for x in answer]
        if len(numbers) != len(videos):
            raise ValueError(f"reward {self.names[0]!r} gave {len(numbers)} numbers for {len(videos)} videos")
        values = torch.tensor(numbers, dtype=torch.float64)[:, None]
        return Scores.of(values)


def parameters(function: Callable[..., Any]) -> tuple[set[str], set[str], bool]:
    """Return the names of a function's first two parameters, those of its others, and whether it takes `**columns`."""
    try:
        known = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # some functions of C have none
        return set(), set(), False
    named = [p.name for p in known if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    return set(named[:2]), set(named[2:]), any(p.kind is p.VAR_KEYWORD for p in known)


def in_any(parts: Iterable[Sequence[int] | None]) -> list[int] | None:
    """Return the indices of frames that at least one reward needs, sorted, or None if any reward needs all frames.

    Args:
        parts: What `frame_indices` of each reward returns.
    """
    numbers: set[int] = set()
    for part in parts:
        if part is None:
            return None
        numbers.update(part)
    return sorted(numbers)


class CompositeReward(Reward):
    """Several rewards as one. Its scores are those of all its rewards; they are weighted and summed elsewhere."""

    def __init__(self, rewards: Sequence[Reward]) -> None:
        self.rewards = list(rewards)
        self.names = tuple(name for reward in rewards for name in reward.names)
        self.wait_seconds = 0.0  # seconds that the caller stood still for scores
        self.groupwise = any(reward.groupwise for reward in rewards)
        self.uses_audio = any(reward.uses_audio for reward in rewards)
        self.lower_is_better = tuple(name for reward in rewards for name in reward.lower_is_better)
        self.laboratory = any(reward.laboratory for reward in rewards)
        self.device_bytes = sum(reward.device_bytes for reward in rewards)
        self.follows_videos_device = any(reward.follows_videos_device for reward in rewards)
        self.not_trainable_because = next(
            (reward.not_trainable_because for reward in rewards if reward.not_trainable_because), None
        )
        twice = {name for name in self.names if self.names.count(name) > 1}
        if twice:
            raise ValueError(f"two rewards share the score name {sorted(twice)[0]!r}: give each its own")

    def score(self, videos: Tensor, prompts: Sequence[Prompt]) -> Scores:
        return self.submit(Videos(videos), prompts)()

    def submit(self, videos: Videos, prompts: Sequence[Prompt]) -> Callable[[], Scores]:
        """Start all rewards, and return a function that waits for their scores.

        Rewards on other machines start now. The others compute when the returned function is called.
        """
        begun = [reward.submit(videos, prompts) for reward in self.rewards]

        def answer() -> Scores:
            started = time.monotonic()
            try:
                return Scores.columns([ask().on_host() for ask in begun])
            finally:
                self.wait_seconds += time.monotonic() - started

        return answer

    def frame_indices(self, frames: int) -> list[int] | None:
        """Return the indices of frames that at least one of the rewards needs, or None if any reward needs all."""
        return in_any(reward.frame_indices(frames) for reward in self.rewards)

    @property
    def reasons(self) -> Mapping[int, str]:  # type: ignore[override] # read-only here: the parts keep them
        """Why videos of the last call are masked, by index.

        Of several reasons for a video, that of the first reward counts.
        """
        return {i: why for reward in reversed(self.rewards) for i, why in reward.reasons.items()}
