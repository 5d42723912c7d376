"""Score the videos of an evaluation: each scorer is built once, and scores each video once.

If a scorer fails on a video, the score is missing, with the reason. The scores of a prompt are in one file with a line
per scorer. The line has a hash of the frames that the scorer saw, and of the sound that it heard. So a video that was
made again is scored again.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from sage_grpo import registry
from sage_grpo.config import ConfigError, RewardConfig
from sage_grpo.config.load import validate
from sage_grpo.config.recipe import RecipeConfig
from sage_grpo.config.yaml_text import YamlError, read_yaml
from sage_grpo.core.protocols import Videos
from sage_grpo.evaluation.prompts import Task
from sage_grpo.evaluation.scorers import Answer, Scorer, Scorers, ask, joined, named
from sage_grpo.evaluation.sources import Candidate, digest
from sage_grpo.evaluation.videos import Folder, load_frames, load_sound, read_record
from sage_grpo.files import atomic_write
from sage_grpo.registry import resolve_reward
from sage_grpo.suggest import did_you_mean
from sage_grpo.training import build

OVERALL = "Overall"


@dataclass(frozen=True)
class VideoScores:
    """The scores that one scorer gave to one video, under the reward's own names for them.

    Names in `Scorer.keys` are not used here, because they depend on which other scorers were chosen.
    """

    frames: str  # hash of the pixels that it was shown, and of the sound if it hears
    scores: dict[str, float]
    masked: dict[str, str]


@dataclass(frozen=True)
class ScorerLine:
    """The scores of one scorer for the videos of one prompt: a line of the prompt's file of scores."""

    scorer: str
    type: str
    videos: dict[int, VideoScores]  # by seed

    def to_json(self) -> dict[str, Any]:
        videos = {str(seed): asdict(video) for seed, video in self.videos.items()}
        return {"scorer": self.scorer, "type": self.type, "videos": videos}

    @classmethod
    def from_json(cls, row: dict[str, Any]) -> Self:
        videos = {
            int(seed): VideoScores(video["frames"], video["scores"], video["masked"])
            for seed, video in row["videos"].items()
        }
        return cls(row["scorer"], row["type"], videos)


@dataclass(frozen=True)
class Score:
    """A score of the results: its scorer's type, whether a source was trained on it, and which way is better."""

    name: str
    type: str
    trained: bool  # some source was trained on it
    lower: bool  # is better
    weight: float | None = None  # in the overall score


def columns(scorers: Scorers) -> list[Score]:
    """Return the scores of the results in order: the overall score, scores that a source was trained on, then others.

    There is an overall score if at least two scores have a weight.
    """
    scores = []
    for scorer in scorers.members:
        weights = scorer.weights or [None] * len(scorer.keys)
        for key, name, weight in zip(scorer.keys, scorer.reward.names, weights, strict=True):
            lower = name in scorer.reward.lower_is_better or (weight or 0) < 0
            scores.append(Score(key, scorer.type, scorer.trained, lower, weight))
    if sum(bool(score.weight) for score in scores) > 1:
        scores.insert(0, Score(OVERALL, "a weighted sum", True, False))
    return scores


def read_scorers(names: Sequence[str], file: Path | None) -> list[RewardConfig]:
    """Return recipe entries of the scorers in `names`, with their default options, and of the scorers in a YAML file.

    The file has a list as under `rewards:`, or is a recipe with rewards and monitors. None is no file.
    """
    by_name = [RewardConfig(type=name) for name in names]
    if file is None:
        return by_name
    try:
        content = read_yaml(file.read_text())
    except FileNotFoundError:
        raise ConfigError(f"there is no file {file}; it holds a list such as `- type: motion`") from None
    except (OSError, YamlError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not valid YAML: {error}") from None
    if isinstance(content, dict):
        content = [*(content.get("rewards") or []), *(content.get("monitors") or [])]
    if not isinstance(content, list) or not content:
        raise ConfigError(f"{file} names no scorers; write a list such as `- type: motion`")
    return [*by_name, *validate({"rewards": content}, RecipeConfig).rewards]


def choose_scorers(
    candidates: Sequence[Candidate], more: Sequence[RewardConfig]
) -> tuple[list[RewardConfig], list[bool]]:
    """Return the recipe entries of all scorers, each once, and for each entry whether a source was trained on it.

    The scorers are the rewards and monitors of all sources, the own monitors of their models, and `more`. Weights of
    the overall score are those of the first recipe that has rewards. Options are checked, but nothing is loaded.
    """
    configs = [candidate.config for candidate in candidates]
    first = next((config for config in configs if config.rewards), None)
    scorers: dict[str, tuple[RewardConfig, bool]] = {}
    for entry in first.rewards if first else ():
        scorers[_key(entry)] = (entry, True)
    for config in configs:
        for entry in config.rewards:
            scorers.setdefault(_key(entry), (entry.model_copy(update={"weights": {}}), True))
    kinds = dict.fromkeys(config.model.type for config in configs)
    own = [RewardConfig(type=name) for kind in kinds for name in build.model_class(kind).own_monitors]
    for entry in (*(monitor for config in configs for monitor in config.monitors), *own, *more):
        scorers.setdefault(_key(entry), (entry, False))
    if not scorers:
        raise ConfigError("no recipe has rewards or monitors; name scorers with --scorer or --scorers")
    for entry, _ in scorers.values():
        build.find_reward(entry)
    return [entry for entry, _ in scorers.values()], [trained for _, trained in scorers.values()]


def _key(entry: RewardConfig) -> str:
    return digest([entry.type, entry.options])


def read_weights(text: str) -> dict[str, float]:
    """Return the weight of each score in the overall score, read from a text such as `VQ=1,MQ=1,TA=1`.

    Raises:
        ConfigError: The text is no such list, or fewer than two weights differ from 0.
    """
    try:
        pairs = [part.split("=") for part in text.split(",")]
        weights = {name.strip(): float(value) for name, value in pairs}
    except ValueError:
        raise ConfigError(f"--weights {text!r} is not a list of name=number; write such as VQ=1,MQ=1,TA=1") from None
    if sum(bool(weight) for weight in weights.values()) < 2:
        raise ConfigError(f"--weights {text!r}: a sum needs two scores or more; write such as VQ=1,MQ=1,TA=1")
    return weights


def check_weights(weights: Mapping[str, float], entries: Sequence[RewardConfig]) -> None:
    """Refuse weights of scores that no scorer gives, before the scorers are built.

    Weights are checked only if the classes of all scorers declare the names of their scores.
    """
    names = [resolve_reward(e.type).names if e.type in registry.rewards() else () for e in entries]
    known = {name for of_one in names for name in of_one}
    for name in weights:
        if name.rpartition(".")[2] not in known and all(names):
            raise ConfigError(f"--weights: there is no score {name!r}; {did_you_mean(name, sorted(known))}")


def weighed(scorers: Scorers, weights: Mapping[str, float]) -> Scorers:
    """Return the scorers with new weights in the overall score: 0 for a score that `weights` does not name."""
    for name in weights:
        if name not in scorers.keys:
            raise ConfigError(f"--weights: there is no score {name!r}; {did_you_mean(name, scorers.keys)}")
    members = [
        replace(scorer, weights=tuple(weights.get(key, 0.0) for key in scorer.keys)) for scorer in scorers.members
    ]
    return replace(scorers, members=members)


def build_scorers(entries: list[RewardConfig], trained: list[bool], candidates: Sequence[Candidate]) -> Scorers:
    """Build the scorer of each entry, with the weights of the first recipe that has rewards.

    `trained` says for each entry whether a source was trained on it.
    """
    first = next((candidate.config for candidate in candidates if candidate.config.rewards), None)
    weighted = [e for e in entries if first and any(e is reward for reward in first.rewards)]
    scorers = named(entries, [build.build_reward(entry) for entry in entries], weighted)
    if first and first.policy.reward_weights:  # the trainer heeds these before the weights of the rewards
        given = iter(first.policy.reward_weights)
        scorers = [replace(j, weights=tuple(next(given) for _ in j.weights)) if j.weights else j for j in scorers]
    return Scorers([replace(scorer, trained=was) for scorer, was in zip(scorers, trained, strict=True)])


def read_lines(path: Path) -> dict[str, ScorerLine]:
    """Return the lines of a prompt's file of scores, by the hash that identifies the scorer.

    The result is empty if the file is missing or damaged.
    """
    try:
        lines = [ScorerLine.from_json(json.loads(text)) for text in path.read_text().splitlines()]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return {line.scorer: line for line in lines}


def score_task(
    folder: Folder, source: str, task: Task, seeds: Sequence[int], scorers: Scorers, *, retry: bool = False
) -> bool:
    """Score the videos of one prompt with every scorer that has not scored them yet, and write the scores to a file.

    Return whether any scorer was run. With `retry`, videos that lack a score are scored again. A scorer that compares
    videos scores all of them again if one is new.
    """
    path = folder.scores(source, task.id)
    lines, kept = read_lines(path), _Kept(folder, source, task, seeds)
    changed = False
    for scorer in scorers.members:
        key = _key(scorer.entry)
        before = lines[key].videos if key in lines else {}
        known = {
            seed: video
            for seed, video in before.items()
            if video.frames == kept.shown(scorer, seed) and not (retry and video.masked)
        }
        todo = [seed for seed in seeds if seed not in known]
        if scorer.groupwise and (todo or len(known) != len(seeds)):  # compared with others than before
            known, todo = {}, list(seeds)
        for seed, answer in _ask(scorer, task, todo, kept).items():
            known[seed] = _video_scores(scorer, answer, kept.shown(scorer, seed))
        changed = changed or bool(todo)
        lines[key] = ScorerLine(key, scorer.type, known)
    if changed:
        text = "".join(json.dumps(line.to_json(), ensure_ascii=False) + "\n" for line in lines.values())
        atomic_write(path, text.encode())
    return changed


class _Kept:
    """The videos of one prompt, decoded when a scorer first needs them.

    The sound is decoded only for a scorer that uses it.
    """

    def __init__(self, folder: Folder, source: str, task: Task, seeds: Sequence[int]) -> None:
        self.folder, self.source, self.task = folder, source, task.id
        self.frames, self.sounds = dict[int, Tensor](), dict[int, Tensor]()
        records = {seed: read_record(folder, source, task.id, seed) for seed in seeds}
        self.records = {seed: record for seed, record in records.items() if record}

    def shown(self, scorer: Scorer, seed: int) -> str:
        """Return the hash of what the scorer gets of the video with this seed; empty if that video was not made."""
        return self.records[seed].shown(scorer.uses_audio) if seed in self.records else ""

    def videos(self, scorer: Scorer, seed: int) -> Videos:
        place, record = (self.folder, self.source, self.task, seed), self.records[seed]
        if seed not in self.frames:
            self.frames[seed] = load_frames(*place, record.frames)
        seen, sound = self.frames[seed][None], record.sound
        if not scorer.uses_audio or sound is None:
            return Videos(seen)
        if seed not in self.sounds:
            self.sounds[seed] = torch.from_numpy(load_sound(*place, sound.samples).wave)
        return Videos(seen, sound.frame_rate, self.sounds[seed][None], sound.sample_rate)


def _ask(scorer: Scorer, task: Task, seeds: Sequence[int], kept: _Kept) -> dict[int, Answer]:
    if not seeds:
        return {}
    if scorer.groupwise:
        group = joined([kept.videos(scorer, seed) for seed in seeds])
        return dict(zip(seeds, ask(scorer, group, [task.prompt] * len(seeds)), strict=True))
    return {seed: ask(scorer, kept.videos(scorer, seed), [task.prompt])[0] for seed in seeds}


def _video_scores(scorer: Scorer, answer: Answer, frames: str) -> VideoScores:
    names = dict(zip(scorer.keys, scorer.reward.names, strict=True))
    return VideoScores(
        frames,
        {names[key]: value for key, value in answer.scores.items()},
        {names[key]: reason for key, reason in answer.masked.items()},
    )


def collect(
    folder: Folder, source: str, tasks: Sequence[Task], seeds: Sequence[int], scorers: Scorers
) -> tuple[dict[str, list[list[float | None]]], dict[str, dict[str, int]]]:
    """Return the values of each score, and for each score how often each reason made a value missing.

    The values of a score are lists with a row per prompt and a column per seed, None where a value is missing.
    """
    table = {key: [[None] * len(seeds) for _ in tasks] for scorer in scorers.members for key in scorer.keys}
    values: dict[str, list[list[float | None]]] = {key: list(map(list, rows)) for key, rows in table.items()}
    reasons: dict[str, dict[str, int]] = {key: {} for key in values}
    for row, task in enumerate(tasks):
        lines = read_lines(folder.scores(source, task.id))
        for scorer in scorers.members:
            line = lines.get(_key(scorer.entry))
            for column, seed in enumerate(seeds):
                video = (line.videos.get(seed) if line else None) or VideoScores("", {}, {})
                for key, name in zip(scorer.keys, scorer.reward.names, strict=True):
                    values[key][row][column] = video.scores.get(name)
                    if name not in video.scores:
                        reason = video.masked.get(name, "it was not scored")
                        reasons[key][reason] = reasons[key].get(reason, 0) + 1
    return values, reasons
