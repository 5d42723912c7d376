"""Score every clip and its degraded copies with every scorer."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from statistics import fmean

import numpy as np
import numpy.typing as npt

from sage_grpo.evaluation.audit.copies import Clip, degraded
from sage_grpo.evaluation.audit.degrade_sound import SOUND_DEGRADATIONS
from sage_grpo.evaluation.clips import Unreadable
from sage_grpo.evaluation.scorers import Answer, Scorer, Scorers, ask, joined
from sage_grpo.progress import EmitProgress

Values = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Sense:
    """Scorers that take the same input, with sound or without, and the names of degradations to audit them on."""

    uses_audio: bool
    scorers: list[Scorer]
    kinds: list[str]

    @property
    def alone(self) -> list[Scorer]:
        return [scorer for scorer in self.scorers if not scorer.groupwise]

    @property
    def together(self) -> list[Scorer]:
        return [scorer for scorer in self.scorers if scorer.groupwise]


def senses_of(scorers: Scorers, names: Sequence[str]) -> list[Sense]:
    """Return the scorers in two groups: those that ignore the sound, and those that hear it.

    An empty group is left out. `names` are the degradations of pictures, for both groups. Scorers that hear are audited
    on the degradations of sound too. To other scorers, a copy with degraded sound is the clip itself.
    """
    deaf = Sense(False, [scorer for scorer in scorers.members if not scorer.uses_audio], list(names))
    hearing = Sense(True, [scorer for scorer in scorers.members if scorer.uses_audio], [*names, *SOUND_DEGRADATIONS])
    return [sense for sense in (deaf, hearing) if sense.scorers]


@dataclass
class Sheet:
    """The scores of all clips and copies by name: an array (clips, 1 + copies) per score, nan where a score is missing.

    The first column has the scores of the clips as they are. `masked` counts the reasons for missing scores, by score.
    `unreadable` has the reason for each clip that cannot be read, by clip.
    """

    values: dict[str, Values]
    masked: dict[str, Counter[str]]
    unreadable: dict[str, str] = field(default_factory=dict)

    def note(self, answer: Answer, row: int, column: int) -> None:
        for key, value in answer.scores.items():
            self.values[key][row, column] = value
        for key, reason in answer.masked.items():
            self.masked[key][reason] += 1


def asked(
    clips: Sequence[Clip], scorers: Scorers, senses: Sequence[Sense], seed: int, megapixels: float, emit: EmitProgress
) -> Sheet:
    """Return the scores of all clips and their copies. One clip is in memory at a time, unless a scorer compares clips.

    Args:
        clips: The clips to degrade and score.
        scorers: All scorers.
        senses: The same scorers in groups, from `senses_of`.
        seed: Clip i is degraded with seed + i.
        megapixels: Most pixels, in millions, of all clips together, for scorers that compare clips. Above it, such
            scorers give no score.
    """
    width = {key: 1 + len(sense.kinds) for sense in senses for scorer in sense.scorers for key in scorer.keys}
    values = {key: np.full((len(clips), width[key]), np.nan) for key in scorers.keys}
    sheet = Sheet(values, {key: Counter() for key in scorers.keys})
    steps = sum(1 + len(sense.kinds) for sense in senses)
    for i, clip in enumerate(clips):
        step = count(i * steps)
        for sense in senses:
            try:
                videos, unheard = clip.shown(sense.uses_audio)
            except (Unreadable, OSError) as error:
                sheet.unreadable[clip.name] = str(error)
                break
            for column, name in enumerate([None, *sense.kinds]):
                emit(next(step), len(clips) * steps, f"{clip.name} {name or 'as it is'}")
                if (copy := degraded(name, videos, seed + i)) is None:
                    continue
                for scorer in sense.alone:
                    sheet.note(ask(scorer, copy, [clip.prompt], unheard)[0], i, column)
    emit(len(clips) * steps, len(clips) * steps, "")
    readable = [(i, clip) for i, clip in enumerate(clips) if clip.name not in sheet.unreadable]
    for sense in senses:
        if readable and sense.together:
            _compare(readable, sense, seed, megapixels, sheet)
    return sheet


def _compare(clips: Sequence[tuple[int, Clip]], sense: Sense, seed: int, megapixels: float, sheet: Sheet) -> None:
    """Score all clips as one group, with the scorers that compare clips: first as they are, then with each degradation.

    Scores in a group depend on each other. So the mean over the group is noted as the score of one clip, the first.
    """
    first = clips[0][0]
    shown = [clip.shown(sense.uses_audio) for _, clip in clips]
    loaded, unheard = [videos for videos, _ in shown], next((why for _, why in shown if why), "")
    same = len({videos.frames.shape for videos in loaded}) == 1 and len(loaded) > 1
    if not same or sum(videos.frames.numel() for videos in loaded) / 3e6 > megapixels:
        reason = "it compares clips, which needs several of one size and within --megapixels together"
        for scorer in sense.together:
            sheet.note(Answer({}, dict.fromkeys(scorer.keys, reason)), first, 0)
        return
    prompts = [clips[0][1].prompt] * len(loaded)
    for column, name in enumerate([None, *sense.kinds]):
        copies = [degraded(name, videos, seed + i) for (i, _), videos in zip(clips, loaded, strict=True)]
        group = [copy for copy in copies if copy is not None]
        for scorer in sense.together if len(group) == len(loaded) else []:
            answers = ask(scorer, joined(group), prompts, unheard)
            scores = {key: [a.scores[key] for a in answers if key in a.scores] for key in scorer.keys}
            missing = {key: reason for a in answers for key, reason in a.masked.items() if not scores[key]}
            sheet.note(Answer({key: fmean(some) for key, some in scores.items() if some}, missing), first, column)
