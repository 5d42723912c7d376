"""Make one video per source, prompt and seed, with a record of its origin, so that a stopped call can be continued.

A video is kept twice, with its sound if the model makes any: as mp4 to look at, and without loss to score. What mp4
loses would change the scores. Each video is made alone, never in a batch: rounding depends on the batch, and a seed and
a prompt must always give the same video.
"""

import gc
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from hashlib import blake2b, file_digest, sha256
from pathlib import Path
from typing import Any, Self

import av
import numpy as np
import torch
from torch import Tensor

from sage_grpo.config import ConfigError
from sage_grpo.core.protocols import Prompt, Videos
from sage_grpo.core.sampler import generate
from sage_grpo.evaluation.prompts import Task
from sage_grpo.evaluation.sources import Candidate, digest
from sage_grpo.files import atomic_write
from sage_grpo.inference.sample import open_source
from sage_grpo.progress import Emit
from sage_grpo.videos import DEFAULT_FPS, LAYOUTS, SoundTrack, mp4_bytes, read_sound, sound_of


@dataclass(frozen=True)
class SoundRecord:
    """The hash and sample rate of a video's sound, and the frame rate of the video.

    Scorers that use the sound need both rates.
    """

    samples: str  # sha256
    sample_rate: int
    frame_rate: float | None


@dataclass(frozen=True)
class Record:
    """The record of a finished video: what the video was made from, and hashes of its frames, sound and files.

    The record is written last, so a video without a record was never finished.
    """

    made_from: str  # hash of model, weights, sampling, prompt and seed
    frames: str  # sha256 of the pixels
    shape: tuple[int, ...]
    files: dict[str, str]  # name below the folder → sha256
    sound: SoundRecord | None = None  # none: the model makes none

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, row: dict[str, Any]) -> Self:
        sound = row.get("sound")
        kept = SoundRecord(sound["samples"], sound["sample_rate"], sound["frame_rate"]) if sound else None
        return cls(row["made_from"], row["frames"], tuple(row["shape"]), row["files"], kept)

    def shown(self, uses_audio: bool) -> str:
        """Return the hash of what a scorer gets: the frames, and with `uses_audio` also the sound, if there is any."""
        return digest([self.frames, asdict(self.sound)]) if uses_audio and self.sound else self.frames


@dataclass(frozen=True)
class Folder:
    root: Path

    def video(self, source: str, task: str, seed: int) -> Path:
        return self.root / "videos" / source / f"{task}-{seed}.mp4"

    def frames(self, source: str, task: str, seed: int) -> Path:
        return self.root / "frames" / source / f"{task}-{seed}.mkv"

    def record(self, source: str, task: str, seed: int) -> Path:
        return self.root / "made" / source / f"{task}-{seed}.json"

    def scores(self, source: str, task: str) -> Path:
        return self.root / "scores" / source / f"{task}.jsonl"


def noise_seed(prompt: Prompt, seed: int) -> int:
    """Return the seed of a video's noise, which depends on the prompt's text and `seed` alone.

    The source, the prompt's place in the list and the process do not change the seed. So the videos of two sources can
    be compared in pairs.
    """
    return int.from_bytes(blake2b(repr((prompt.text, seed)).encode(), digest_size=7).digest(), "little")


def made_from(candidate: Candidate, prompt: Prompt, seed: int) -> str:
    image = prompt.columns.get("image")
    picture = sha256(Path(image).read_bytes()).hexdigest() if isinstance(image, str) and image else None
    return digest([candidate.identity, prompt.text, picture, seed])


def read_record(folder: Folder, source: str, task: str, seed: int) -> Record | None:
    try:
        return Record.from_json(json.loads(folder.record(source, task, seed).read_text()))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def is_made(folder: Folder, candidate: Candidate, task: Task, seed: int) -> bool:
    """Return whether the video exists, was made by the source as it is now, and its files are unchanged since.

    The files are compared by their hashes.
    """
    record = read_record(folder, candidate.name, task.id, seed)
    if record is None or record.made_from != made_from(candidate, task.prompt, seed):
        return False
    return all(_hash(folder.root / name) == expected for name, expected in record.files.items())


def _hash(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


def missing_videos(
    folder: Folder, candidate: Candidate, tasks: Sequence[Task], seeds: Sequence[int]
) -> list[tuple[Task, int]]:
    return [(task, seed) for task in tasks for seed in seeds if not is_made(folder, candidate, task, seed)]


def make_videos(
    folder: Folder,
    candidate: Candidate,
    todo: Sequence[tuple[Task, int]],
    emit: Emit,
    *,
    average: bool = True,
    overrides: Sequence[str] = (),
    after_first: Callable[[], None] = lambda: None,
) -> None:
    """Make the videos of `todo` with one source and write them to the evaluation's folder.

    The model is loaded only if there is a video to make, and is freed at the end.

    Args:
        folder: The folder of the evaluation.
        candidate: The source that makes the videos.
        todo: The prompt and seed of each video to make.
        emit: Reports each prompt before its video is made.
        average: Whether to use the averaged weights of a checkpoint, if it has any.
        overrides: Settings that replace those of the source's recipe.
        after_first: Called after the first video. It may refuse the source if the size of its videos fits no other
            source.
    """
    if not todo:
        return
    # what candidates may name was decided when they were found
    source = open_source(candidate.path, average=average, overrides=overrides, trust_code=True)
    for i, (task, seed) in enumerate(todo):
        emit(f"{candidate.name}: {task.short}")
        with torch.no_grad():
            latents = generate(source.model, [task.prompt], candidate.config, [noise_seed(task.prompt, seed)])
            made = source.model.render(latents)
        keep(folder, candidate, task, seed, made)
        if i == 0:
            after_first()
    del source
    gc.collect()  # before the next model is loaded


def keep(folder: Folder, candidate: Candidate, task: Task, seed: int, made: Videos) -> None:
    key, video = (candidate.name, task.id, seed), made.frames[0].cpu()
    sound, rate = sound_of(made.sound, made.sample_rate, 0), made.frame_rate
    content = {
        folder.video(*key): mp4_bytes(video, rate, sound=sound),
        folder.frames(*key): lossless(video, sound, rate),
    }
    for path, data in content.items():
        atomic_write(path, data)
    files = {path.relative_to(folder.root).as_posix(): sha256(data).hexdigest() for path, data in content.items()}
    heard = SoundRecord(hash_of_sound(sound), sound.rate, rate) if sound else None
    record = Record(made_from(candidate, task.prompt, seed), hash_of(video), tuple(video.shape), files, heard)
    atomic_write(folder.record(*key), json.dumps(record.to_json()).encode())


def hash_of(video: Tensor) -> str:
    return sha256(video.contiguous().numpy().tobytes()).hexdigest()


def hash_of_sound(sound: SoundTrack) -> str:
    return sha256(repr(sound.wave.shape).encode() + np.ascontiguousarray(sound.wave).tobytes()).hexdigest()


def lossless(video: Tensor, sound: SoundTrack | None = None, fps: float | None = None) -> bytes:
    """Encode frames (F, H, W, 3), uint8, and their sound without loss, and return the bytes of a Matroska file.

    The frames are H.264 in RGB at quantiser 0, which takes a twentieth to a half of the bytes of the pixels. The sound
    is stored as the floats that the model gave, and is a small part of the file.

    Args:
        video: The frames.
        sound: The sound; None if there is none.
        fps: Frames per second, used only if there is sound; None for the default.
    """
    out, array = io.BytesIO(), video.numpy()
    bitexact = {"fflags": "bitexact"}  # the same video is the same file: no random number of the container's own
    with av.open(out, "w", format="matroska", options=bitexact) as container:
        rate = Fraction(fps or DEFAULT_FPS).limit_denominator(1000) if sound else DEFAULT_FPS
        stream = container.add_stream("libx264rgb", rate=rate, options={"qp": "0", "preset": "veryfast"})
        stream.height, stream.width, stream.pix_fmt = array.shape[1], array.shape[2], "rgb24"
        layout = LAYOUTS[len(sound.wave)] if sound else ""
        heard = container.add_stream("pcm_f32le", rate=sound.rate, layout=layout) if sound else None
        for picture in array:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")))
        container.mux(stream.encode())
        if sound and heard:
            in_turn = np.ascontiguousarray(sound.wave.T, dtype=np.float32).reshape(1, -1)  # of the channels
            whole = av.AudioFrame.from_ndarray(in_turn, format="flt", layout=layout)
            whole.sample_rate, whole.pts = sound.rate, 0
            container.mux([*heard.encode(whole), *heard.encode()])
    return out.getvalue()


def load_frames(folder: Folder, source: str, task: str, seed: int, expected: str) -> Tensor:
    """Return the frames of a video as they were made, (F, H, W, 3), uint8.

    Raises:
        RuntimeError: The hash of the frames is not `expected`, the hash in the record.
    """
    path = folder.frames(source, task, seed)
    with av.open(str(path)) as container:
        video = torch.from_numpy(np.stack([f.to_ndarray(format="rgb24") for f in container.decode(video=0)]))
    if hash_of(video) != expected:
        raise RuntimeError(f"{path} does not give back the frames that were made; remove it, and it is made again")
    return video


def load_sound(folder: Folder, source: str, task: str, seed: int, expected: str) -> SoundTrack:
    """Return the sound of a video as it was made.

    Raises:
        RuntimeError: There is no sound, or its hash is not `expected`, the hash in the record.
    """
    path = folder.frames(source, task, seed)
    sound = read_sound(path)
    if sound is None or hash_of_sound(sound) != expected:
        raise RuntimeError(f"{path} does not give back the sound that was made; remove it, and it is made again")
    return sound


def refuse_sizes(folder: Folder, candidates: Sequence[Candidate], tasks: Sequence[Task], seeds: Sequence[int]) -> None:
    """Refuse sources whose videos differ in their number of frames, height or width, by the first video of each source.

    A recipe may leave the size to the model. The sizes of such sources can only be compared once there are videos.
    """
    first: dict[tuple[int, ...], str] = {}
    for candidate in candidates:
        record = read_record(folder, candidate.name, tasks[0].id, seeds[0]) if tasks else None
        if record:
            first.setdefault(record.shape, candidate.name)
    if len(first) > 1:
        sizes = " and ".join(f"{name} of {' × '.join(map(str, shape[:3]))}" for shape, name in first.items())
        raise ConfigError(
            f"videos of {sizes} (frames, height, width) are not compared: make model.frames, height and width the same"
        )
