"""The chosen scorers, and their answer to a video: its scores, or the reason why a score is missing."""

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

from sage_grpo.config import ConfigError, RewardConfig
from sage_grpo.core.protocols import Prompt, Videos
from sage_grpo.core.reward import Reward
from sage_grpo.errors import UserError
from sage_grpo.evaluation.catalogue import Entry, catalogue
from sage_grpo.evaluation.texts import MissingPrompt, NoPrompt
from sage_grpo.registry import load_trusted_recipe
from sage_grpo.rewards.frames import Unscorable
from sage_grpo.rewards.function import FunctionReward
from sage_grpo.training import build

NO_REASON, NO_SOUND = "the scorer gives no score for it", "it has no sound"
UNLIKE = "it compares sounds, so every video needs one of the same length and rate"


@dataclass(frozen=True)
class Scorer:
    reward: Reward
    entry: RewardConfig
    keys: tuple[str, ...]  # names of its scores, each its own among all scorers
    weights: tuple[float, ...] | None = None  # none: not part of the recipe's sum
    trained: bool = False  # some policy was trained on it

    @property
    def type(self) -> str:
        return self.entry.type

    @property
    def groupwise(self) -> bool:
        return self.reward.groupwise

    @property
    def uses_audio(self) -> bool:
        return self.reward.uses_audio


@dataclass(frozen=True)
class Answer:
    """The scores of one video, and the reason for each score that is missing."""

    scores: dict[str, float]
    masked: dict[str, str]


@dataclass(frozen=True)
class Scorers:
    """The chosen scorers, and the reasons why others were left out."""

    members: list[Scorer]
    left_out: Mapping[str, str] = field(default_factory=dict)  # not asked for by name, and cannot work here
    advantages: bool = False  # the recipe compares each score on its own before it sums

    @property
    def keys(self) -> list[str]:
        return [key for scorer in self.members for key in scorer.keys]


def choose(names: Sequence[str], recipe: Path | None) -> Scorers:
    """Build the named scorers and those of a recipe (rewards and monitors).

    If neither is given, build all built-in scorers that need no option, download or missing package.

    Raises:
        ConfigError: The recipe has neither rewards nor monitors, and no scorer is named.
    """
    entries = [RewardConfig(type=name) for name in names]
    trained: list[RewardConfig] = []
    advantages = False
    if recipe:
        config = load_trusted_recipe(recipe)
        trained, advantages = list(config.rewards), config.policy.aggregation == "advantages"
        entries += [*trained, *config.monitors]
        if not entries:
            raise ConfigError(f"{recipe} names no rewards; write such as `rewards: [{{type: motion}}]`")
    if entries:
        rewards = [build.build_reward(entry) for entry in entries]
        return Scorers(named(entries, rewards, trained), advantages=advantages)
    return _ready_ones()


def _ready_ones() -> Scorers:
    left_out, entries, rewards = {}, [], []
    for known in catalogue():
        if not known.ready:
            left_out[known.name] = _why_not(known)
            continue
        try:
            rewards.append(build.build_reward(RewardConfig(type=known.name)))
            entries.append(RewardConfig(type=known.name))
        except (ValueError, OSError, ImportError) as error:  # not asked for by name, so it may stay away
            left_out[known.name] = str(error)
    return Scorers(named(entries, rewards, []), left_out)


def _why_not(known: Entry) -> str:
    if known.missing:
        return known.install or known.missing
    if known.required:
        return f"needs {', '.join(known.required)}: use --rewards"
    return "for the laboratory only" if known.laboratory else "fetches weights: ask for it by name"


def named(entries: Sequence[RewardConfig], rewards: Sequence[Reward], trained: Sequence[RewardConfig]) -> list[Scorer]:
    """Return one scorer per recipe entry. The names of all their scores are made unique.

    Args:
        entries: The recipe entries.
        rewards: The reward that was built from each entry.
        trained: The entries whose scorers get the weights of the recipe, compared by identity. Other scorers have no
            weights.
    """
    count = Counter(name for reward in rewards for name in set(reward.names))
    scorers: list[Scorer] = []
    for entry, reward in zip(entries, rewards, strict=True):
        own = [name if count[name] == 1 else f"{entry.type}.{name}" for name in reward.names]
        used = {key for scorer in scorers for key in scorer.keys}
        keys = tuple(key if key not in used else f"{key}.{len(scorers) + 1}" for key in own)
        part = any(entry is reward_config for reward_config in trained)
        scorers.append(Scorer(reward, entry, keys, tuple(build.reward_weights(entry, reward)) if part else None))
    return scorers


@contextmanager
def logged_messages() -> Iterator[list[str]]:
    """Yield a list of the warnings that this package logs inside the block.

    The warnings become reasons for missing scores, not lines in the middle of a progress bar.
    """
    messages: list[str] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    log, collector = logging.getLogger("sage_grpo"), Collector(logging.WARNING)
    before = log.propagate
    log.addHandler(collector)
    log.propagate = False
    try:
        yield messages
    finally:
        log.removeHandler(collector)
        log.propagate = before


def ask(scorer: Scorer, videos: Videos, prompts: Sequence[Prompt], unheard: str = "") -> list[Answer]:
    """Score a batch of videos in the same way as a run does, and return one answer per video.

    If the scorer fails, the scores of these videos are missing, with the error as the reason. A scorer that does not
    use the sound gets only the frames.

    Args:
        scorer: The scorer to run.
        videos: The videos, one per prompt.
        prompts: The prompts of the videos.
        unheard: The reason why the sound cannot be read, an empty text if it can. If given, a scorer that uses the
            sound is not run, and its scores are missing for this reason.
    """
    if unheard and scorer.uses_audio:
        return [Answer({}, dict.fromkeys(scorer.keys, unheard)) for _ in prompts]
    if isinstance(scorer.reward, FunctionReward):  # hands all texts over, wanted or not
        prompts = [Prompt("") if isinstance(prompt, NoPrompt) else prompt for prompt in prompts]
    reasons: dict[int, str] = {}
    with logged_messages() as messages, torch.no_grad():
        try:
            scores = scorer.reward.submit(videos if scorer.uses_audio else Videos(videos.frames), prompts)()
            values, valid = scores.values.tolist(), scores.valid.tolist()
            reasons = dict(scorer.reward.reasons)
            general = messages[-1] if messages and not reasons else _why_masked(scorer, videos)
        except Exception as error:
            values = valid = [[False] * len(scorer.keys)] * len(videos)
            if isinstance(error, MissingPrompt):  # it may have failed before it came to look at the prompt
                known = dict(scorer.reward.reasons)
                reasons = {i: reason for i, reason in known.items() if i == 0 and len(videos) == 1}
            general = str(error) if isinstance(error, MissingPrompt) else _message(error)
    answers = []
    for i, (row, good) in enumerate(zip(values, valid, strict=True)):
        scored = {key: float(value) for key, value, ok in zip(scorer.keys, row, good, strict=True) if ok}
        reason = reasons.get(i, general)
        answers.append(Answer(scored, {key: reason for key in scorer.keys if key not in scored}))
    return answers


def _why_masked(scorer: Scorer, videos: Videos) -> str:
    if scorer.uses_audio and videos.sound is None:
        return UNLIKE if scorer.groupwise else NO_SOUND
    return NO_REASON


def joined(videos: Sequence[Videos]) -> Videos:
    """Join videos into one batch, for scorers that compare videos.

    Sound and rates are kept only if all videos agree in frame rate, sample rate and the shape of the sound.
    """
    kinds = {(one.frame_rate, one.sample_rate, one.sound.shape if one.sound is not None else None) for one in videos}
    return Videos.joined(videos if len(kinds) == 1 else [Videos(one.frames) for one in videos])


def _message(error: Exception) -> str:
    text = " ".join(str(error).split())[:200]
    return text if isinstance(error, UserError | Unscorable) else f"{type(error).__name__}: {text}"
