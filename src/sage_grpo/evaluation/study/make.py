"""Make a study from videos: choose prompts, strip what could reveal sources, degrade copies for attention checks."""

import io
import json
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import combinations, product
from pathlib import Path

import av
import numpy as np
from av.bitstream import BitStreamFilterContext

from sage_grpo.config import ConfigError
from sage_grpo.evaluation.audit.degrade import degrade
from sage_grpo.evaluation.clips import Unreadable, open_video
from sage_grpo.evaluation.manifest import NAME as MANIFEST
from sage_grpo.evaluation.manifest import Manifest
from sage_grpo.evaluation.study.plan import ANSWERS, NAME, VIDEOS, Clip, Comparison, Dimension, StudyPlan, dump_plan
from sage_grpo.evaluation.texts import NoPrompt, find_prompts
from sage_grpo.evaluation.videos import Folder as EvaluationFolder
from sage_grpo.files import atomic_write
from sage_grpo.progress import EmitProgress, no_count
from sage_grpo.videos import mp4_bytes

DIMENSIONS = {
    "visual": ("Visual quality", "Which picture is better: sharp, clean, with natural light and colour, no artefacts?"),
    "motion": ("Motion quality", "Which moves better: smooth, natural and alive, without jumps, flicker or melting?"),
    "semantic": ("Semantic alignment", "Which shows better what the text says: the things, their looks, the action?"),
}
# Worse beyond doubt in every clip. A frozen copy is not: it may move better than an original that shakes.
SPOILT = ("noise", "flat")
SEI = 6  # units of H.264 in which encoders write their name and settings


@dataclass(frozen=True)
class Item:
    """A prompt with its videos: for each seed, one video per source."""

    id: str
    text: str
    versions: tuple[Mapping[str, Path], ...]


def from_eval(folder: Path) -> tuple[list[str], list[Item]]:
    """Return the names of the sources, and the prompts with their videos, from a folder that `sage-grpo eval` wrote."""
    path = folder / MANIFEST
    if not path.is_file():
        raise ConfigError(f"{folder} has no manifest.json; name a folder of `sage-grpo eval`, or --videos a=folder")
    try:
        manifest = Manifest.from_json(json.loads(path.read_bytes()))
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is no manifest of `sage-grpo eval`: {error!r}") from error
    videos = EvaluationFolder(folder)
    items = [
        Item(
            task.id,
            task.prompt.text,
            tuple({s: videos.video(s, task.id, seed) for s in manifest.sources} for seed in manifest.seeds),
        )
        for task in manifest.tasks
    ]
    return list(manifest.sources), items


def from_folders(folders: Mapping[str, Path], prompts: Path | None = None) -> tuple[list[str], list[Item]]:
    """Return the names of the sources, and the prompts with their videos, from one folder of mp4 files per source.

    Files of the same name in all folders are videos of one prompt. The prompts come from the file `prompts`, as for
    `rewards score`, or from a .txt next to a video.
    """
    files = {name: {path.stem: path for path in sorted(folder.glob("*.mp4"))} for name, folder in folders.items()}
    names = sorted(set.intersection(*(set(paths) for paths in files.values()))) if files else []
    odd = [path for paths in files.values() for stem, path in paths.items() if stem not in names]
    if odd or not names:
        what = f"{odd[0]} has no partner of its name in every other folder" if odd else "there are no mp4 files in them"
        raise ConfigError(f"the folders need equally named mp4 files: {what}")
    first, *others = files
    texts = find_prompts([files[first][stem] for stem in names], folders[first], prompts)
    for other in others:
        more = find_prompts([files[other][stem] for stem in names], folders[other], None)
        texts = [m if isinstance(t, NoPrompt) else t for t, m in zip(texts, more, strict=True)]
    return list(files), [
        Item(stem, "" if isinstance(text, NoPrompt) else text.text, ({name: files[name][stem] for name in files},))
        for stem, text in zip(names, texts, strict=True)
    ]


def choose_pairs(sources: Sequence[str], method: str | None, against: str | None) -> list[tuple[str, str]]:
    """Return the pairs of sources to compare: `method` is the first of each pair, `against` the second, if given.

    Args:
        sources: All sources, in their order.
        method: The first source of each pair; None for any.
        against: The second source of each pair; None for any. If both are None, every source is compared with each
            earlier one.

    Raises:
        ConfigError: There are fewer than two sources, a name is unknown, or two sources share one.
    """
    if len(sources) < 2:
        raise ConfigError(f"a comparison needs two sources; there is {', '.join(sources) or 'none'}")
    if len(set(sources)) < len(sources):
        raise ConfigError(f"two sources have one name: {', '.join(sources)}")
    for name in (method, against):
        if name is not None and name not in sources:
            raise ConfigError(f"there is no source {name!r}; there are {', '.join(sources)}")
    if method is not None and against is not None:
        return [(method, against)] if method != against else choose_pairs([method], None, None)
    if method is not None:
        return [(method, other) for other in sources if other != method]
    if against is not None:
        return [(other, against) for other in sources if other != against]
    return [(later, earlier) for earlier, later in combinations(sources, 2)]


def stripped(path: Path, data: bytes | None = None) -> bytes:
    """Return an mp4 with the same frames, without what could reveal its source: sound, names, times and settings.

    Args:
        path: The mp4 file. Errors name it.
        data: The bytes of the mp4; None to read them from `path`.

    Raises:
        ConfigError: The file is not a video, or not every browser plays it.
    """
    out = io.BytesIO()
    try:
        with (
            av.open(io.BytesIO(path.read_bytes() if data is None else data), "r") as source,
            av.open(out, "w", format="mp4", options={"fflags": "+bitexact"}) as target,
        ):
            stream = source.streams.video[0]
            kind = f"{stream.codec_context.name} {stream.codec_context.pix_fmt}"
            if kind not in ("h264 yuv420p", "h264 yuvj420p"):
                raise ConfigError(
                    f"{path} is {kind}, which not every browser plays; convert it: "
                    f"ffmpeg -i {path.name} -c:v libx264 -crf 16 -pix_fmt yuv420p new.mp4"
                )
            copy = target.add_stream_from_template(stream)
            copy.metadata.clear()
            without = BitStreamFilterContext(f"filter_units=remove_types={SEI}", stream, copy)
            for packet in source.demux(stream):
                for filtered in without.filter(packet if packet.dts is not None else None):
                    filtered.stream = copy
                    target.mux(filtered)
    except (av.error.FFmpegError, IndexError) as error:
        raise ConfigError(f"{path} is not a video, or a damaged one ({error})") from error
    return out.getvalue()


def degraded(path: Path, kind: str, seed: int) -> bytes:
    try:
        video = open_video(path)
    except Unreadable as error:
        raise ConfigError(f"{path}: {error}") from error
    return stripped(path, mp4_bytes(degrade(kind, video.frames, seed), video.fps, scale=1))


class Folder:
    """The folder of a study's videos, whose file names are hashes of their content."""

    def __init__(self, out: Path, total: int, emit: EmitProgress) -> None:
        self.out, self.total, self.emit = out / VIDEOS, total, emit
        self.hashes: dict[str, str] = {}
        self.done = 0

    def keep(self, data: bytes, what: str) -> str:
        digest = sha256(data).hexdigest()
        name = f"{digest[:20]}.mp4"
        atomic_write(self.out / name, data)
        self.hashes[name] = digest
        self.done += 1
        self.emit(self.done, self.total, what)
        return name


def make_study(
    out: Path,
    sources: Sequence[str],
    items: Sequence[Item],
    pairs: Sequence[tuple[str, str]],
    *,
    prompts: int,
    dimensions: Sequence[Dimension],
    checks: int,
    per_rater: int | None,
    max_failed: float,
    seed: int,
    title: str,
    contact: str = "",
    emit: EmitProgress = no_count,
) -> StudyPlan:
    """Write the videos of a study and then its plan, so that a folder with a plan is complete. Return the plan.

    Args:
        out: The folder to write.
        sources: The names of the sources.
        items: The prompts with their videos.
        pairs: The pairs of sources to compare.
        prompts: Most prompts; they are drawn at random.
        dimensions: The questions about each pair.
        checks: Number of attention checks per rater.
        per_rater: Comparisons per rater; None for all.
        max_failed: Share of attention checks, from 0 to 1. A rater who fails more is left out.
        seed: Seed of all random choices.
        title: The title that raters see.
        contact: Who runs the study, shown to raters.

    Raises:
        ConfigError: `out` has a study already, a video is missing, or a file is no video that every browser plays.
    """
    if (out / NAME).exists() or (out / ANSWERS).exists():
        raise ConfigError(f"{out} has a study in it already; its answers belong to its plan: give another --out")
    random = np.random.default_rng([seed, 0])
    chosen = [items[i] for i in sorted(random.permutation(len(items))[:prompts])]
    versions = [item.versions[int(random.integers(len(item.versions)))] for item in chosen]
    used = [name for name in sources if any(name in pair for pair in pairs)]
    missing = [version[name] for version in versions for name in used if not version[name].is_file()]
    if missing:
        raise ConfigError(f"{missing[0]} is missing; every source needs a video of every prompt")
    folder = Folder(out, len(chosen) * len(used) + checks, emit)
    drawn = [
        DrawnItem(item, version, {name: folder.keep(stripped(version[name]), item.id) for name in used})
        for item, version in zip(chosen, versions, strict=True)
    ]
    comparisons = [item.compare(f"c{i:04}", *pair) for i, (item, pair) in enumerate(product(drawn, pairs))]
    tests = []
    for i, which in enumerate(np.resize(random.permutation(len(drawn)), checks)):
        original, name, kind = drawn[which], used[int(random.integers(len(used)))], SPOILT[i % len(SPOILT)]
        copy = folder.keep(degraded(original.version[name], kind, seed + i), f"check {i + 1}")
        tests.append(original.check(f"k{i:04}", name, copy, kind))
    odd = ", ".join(item.item.id for item in drawn if len({_shape(item.version[name]) for name in used}) > 1)
    plan = StudyPlan(
        title=title,
        contact=contact,
        seed=seed,
        made=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        dimensions=tuple(dimensions),
        sources=tuple(used),
        pairs=tuple(pairs),
        comparisons=tuple(comparisons),
        checks=tuple(tests),
        per_rater=min(per_rater or len(comparisons), len(comparisons)),
        max_failed=max_failed,
        rule=_rule(dimensions[0].name, max_failed),
        videos=folder.hashes,
        access=secrets.token_urlsafe(9),
        notes=(f"videos of different size, length or rate tell sources apart: {odd}",) if odd else (),
    )
    atomic_write(out / NAME, dump_plan(plan))
    return plan


@dataclass(frozen=True)
class DrawnItem:
    """A prompt with the videos of one seed, drawn for the study.

    `version` has the original file of each source, `videos` the name of its file in the study.
    """

    item: Item
    version: Mapping[str, Path]
    videos: Mapping[str, str]

    def compare(self, key: str, first: str, second: str) -> Comparison:
        return self._comparison(key, self._clip(first), self._clip(second))

    def check(self, key: str, source: str, copy: str, kind: str) -> Comparison:
        return self._comparison(key, self._clip(source), Clip(source="degraded copy", video=copy), kind)

    def _clip(self, source: str) -> Clip:
        return Clip(source=source, video=self.videos[source])

    def _comparison(self, key: str, first: Clip, second: Clip, kind: str = "") -> Comparison:
        return Comparison(id=key, prompt_id=self.item.id, prompt=self.item.text, first=first, second=second, check=kind)


def _rule(first: str, max_failed: float) -> str:
    return (
        f"An attention check is passed if the original is called better in {first!r} and its degraded copy in no "
        f"dimension. Who answers no check, or fails more than {max_failed:.0%} of those answered, is left out; both "
        "results are told. A repeated pair counts once, as it was first shown."
    )


def _shape(path: Path) -> tuple[int, int, int, float]:
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        return stream.width, stream.height, stream.frames, float(stream.average_rate or 0)
