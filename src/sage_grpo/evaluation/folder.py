"""Score many videos, one in memory at a time unless a scorer compares videos, and summarise the scores."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from sage_grpo.core.protocols import Prompt, Videos
from sage_grpo.evaluation.clips import MEGAPIXELS, Unreadable, Video, as_shown, listen, open_video
from sage_grpo.evaluation.scorers import Answer, Scorer, ask, joined
from sage_grpo.evaluation.texts import NoPrompt
from sage_grpo.progress import EmitProgress, no_count


@dataclass
class Row:
    """The scores of one video. `masked` has the reason for every score that is missing."""

    file: str
    prompt: str | None
    frames: int | None = None
    height: int | None = None
    width: int | None = None
    fps: float | None = None
    scores: dict[str, float] = field(default_factory=dict)
    masked: dict[str, str] = field(default_factory=dict)

    def take(self, answer: Answer) -> None:
        self.scores |= answer.scores
        self.masked |= answer.masked

    def mask(self, scorers: Sequence[Scorer], reason: str) -> None:
        self.masked |= {key: reason for scorer in scorers for key in scorer.keys}


def score_videos(
    videos: Sequence[Path],
    prompts: Sequence[Prompt],
    scorers: Sequence[Scorer],
    root: Path,
    megapixels: float = MEGAPIXELS,
    emit: EmitProgress = no_count,
) -> list[Row]:
    """Return a row of scores per video, in the order of `videos`.

    A video that cannot be read or scored has the reason in its row. The others are still scored.

    Args:
        videos: The video files.
        prompts: One prompt per video, `NoPrompt` for a video without a prompt.
        scorers: The scorers to run. Those that compare videos are given all videos of one prompt together.
        root: Folder that the file names in the rows are relative to.
        megapixels: Most pixels, in millions, of one video, and of all videos that are compared together.
    """
    rows = [
        Row(_name(path, root), None if isinstance(p, NoPrompt) else p.text)
        for path, p in zip(videos, prompts, strict=True)
    ]
    alone, together = [j for j in scorers if not j.groupwise], [j for j in scorers if j.groupwise]
    for i, (path, prompt, row) in enumerate(zip(videos, prompts, rows, strict=True)):
        emit(i, len(rows), row.file)
        try:
            video = open_video(path, megapixels)
        except (Unreadable, OSError) as error:
            row.mask(scorers, str(error))
            continue
        row.frames, row.height, row.width = video.frames.shape[:3]
        row.fps = video.fps
        shown, unheard = _shown(path, video, alone)
        for scorer in alone:
            row.take(ask(scorer, shown, [prompt], unheard)[0])
        del video, shown
    emit(len(rows), len(rows), "")
    if together:
        _score_groups(videos, prompts, rows, together, megapixels)
    return rows


def _shown(path: Path, video: Video, scorers: Sequence[Scorer]) -> tuple[Videos, str]:
    """Return the video as a batch of one, and the reason why its sound cannot be read, an empty text if it can.

    The sound is read only if one of the scorers uses it.
    """
    seen = as_shown(video)
    try:
        return listen(path, seen) if any(scorer.uses_audio for scorer in scorers) else seen, ""
    except Unreadable as error:
        return seen, str(error)


def _name(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)


def _score_groups(
    videos: Sequence[Path], prompts: Sequence[Prompt], rows: list[Row], scorers: list[Scorer], megapixels: float
) -> None:
    """Score the readable videos of each prompt as a group, with the scorers that compare videos, and fill in `rows`."""
    groups: dict[str | None, list[int]] = {}
    for i, row in enumerate(rows):
        if row.frames:
            groups.setdefault(row.prompt, []).append(i)
    for text, group in groups.items():
        reason = _no_group(text, [rows[i] for i in group], megapixels)
        parts: list[tuple[Videos, str]] = []
        try:
            parts = [_shown(videos[i], open_video(videos[i], megapixels), scorers) for i in group if not reason]
        except (Unreadable, OSError) as error:
            parts, reason = [], str(error)
        shown = joined([one for one, _ in parts]) if parts else None
        unheard = next((why for _, why in parts if why), "")
        del parts  # joined, they are held a second time
        for scorer in scorers:
            if shown is None:
                for i in group:
                    rows[i].mask([scorer], reason)
                continue
            for i, answer in zip(group, ask(scorer, shown, [prompts[i] for i in group], unheard), strict=True):
                rows[i].take(answer)


def _no_group(text: str | None, group: list[Row], megapixels: float) -> str:
    sizes = {(row.frames, row.height, row.width) for row in group}
    pixels = sum((row.frames or 0) * (row.height or 0) * (row.width or 0) for row in group) / 1e6
    if text is None:
        return "it compares the videos of one prompt, and there is no prompt for it"
    if len(group) < 2:
        return "it compares the videos of one prompt, and this one is alone"
    if len(sizes) > 1:
        return "it compares the videos of one prompt, and these differ in size"
    if pixels > megapixels:
        return (
            f"the {len(group)} videos of its prompt have {pixels:,.0f} megapixels, above the limit of "
            f"{megapixels:g}; raise --megapixels"
        )
    return ""


@dataclass(frozen=True)
class Summary:
    """The distribution of one score over the videos, and how often each reason made the score missing.

    `sd` is None with fewer than two values. The mean, the least and the largest value are None without any.
    """

    scored: int
    masked: int
    mean: float | None
    sd: float | None
    min: float | None
    max: float | None
    reasons: dict[str, int]


def summarise(rows: Sequence[Row], keys: Sequence[str]) -> dict[str, Summary]:
    summaries = {}
    for key in keys:
        values = [row.scores[key] for row in rows if key in row.scores]
        reasons = Counter(row.masked[key] for row in rows if key in row.masked)
        summaries[key] = Summary(
            len(values),
            len(rows) - len(values),
            fmean(values) if values else None,
            stdev(values) if len(values) > 1 else None,
            min(values, default=None),
            max(values, default=None),
            dict(reasons.most_common()),
        )
    return summaries


@dataclass(frozen=True)
class FolderScores:
    """The content of scores.json: the scorers, a summary of each score, and a row per video."""

    rewards: list[tuple[str, tuple[str, ...]]]  # type and names of the scores
    summary: dict[str, Summary]  # by score
    rows: Sequence[Row]

    def to_json(self) -> dict[str, Any]:
        return {
            "rewards": [{"type": kind, "scores": list(keys)} for kind, keys in self.rewards],
            "videos": len(self.rows),
            "summary": {key: asdict(summary) for key, summary in self.summary.items()},
            "rows": [asdict(row) for row in self.rows],
        }


def folder_scores(rows: Sequence[Row], scorers: Sequence[Scorer]) -> FolderScores:
    keys = [key for scorer in scorers for key in scorer.keys]
    return FolderScores([(scorer.type, scorer.keys) for scorer in scorers], summarise(rows, keys), rows)


def number(value: float | None, digits: int = 3) -> str:
    """Return a value as short text for a table, or a dash if it is missing or not finite.

    The text has `digits` significant digits; the full value is in the JSON file.
    """
    if value is None or not math.isfinite(value):
        return "–"
    return f"{value + 0.0:.{digits}g}".replace("-", "−")
