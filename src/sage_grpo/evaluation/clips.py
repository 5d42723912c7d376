"""Find the videos of any folder and decode them one at a time. A file that cannot be read raises `Unreadable`."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import av
import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from sage_grpo.config import ConfigError
from sage_grpo.core.protocols import Videos
from sage_grpo.videos import Frames, read_sound, rgb_frame

FILMS = (".mp4", ".webm", ".mkv", ".mov", ".avi", ".m4v", ".mpg", ".mpeg", ".gif")
PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
THROUGH_PILLOW = (".gif", *PICTURES)
MEGAPIXELS = 200.0  # 600 MB of frames: 5 s of 1280 × 720 at 24 frames a second are 111
SAMPLES = 100_000_000  # 400 MB of sound: 17 minutes in stereo at 48 kHz
WHOLE = 0.9  # of the frames that a file declares: some count one too many, a torn file has many too few


class Unreadable(ValueError):
    """Raised when a file is not a video that can be scored. The message is the reason."""


@dataclass(frozen=True)
class Video:
    frames: Tensor  # uint8 (F, H, W, 3)
    fps: float | None


def find_videos(paths: list[Path], kinds: Sequence[tuple[str, ...]] = (FILMS, PICTURES)) -> list[Path]:
    """Return the given files, and for each given folder the videos in it and below.

    From a folder, only the files of the first kind that it contains are returned. So in a folder of films, pictures are
    left out.

    Args:
        paths: Files and folders.
        kinds: Groups of file endings, such as those of films and those of pictures, the preferred group first.

    Raises:
        ConfigError: A path does not exist, or a folder has no videos.
    """
    videos: list[Path] = []
    for path in paths:
        if path.is_dir():
            videos += _inside(path, kinds)
        elif path.is_file():
            videos.append(path)
        else:
            raise ConfigError(f"there is no file or folder {path}; name a folder of videos, or a video")
    return videos


def _inside(folder: Path, kinds: Sequence[tuple[str, ...]]) -> list[Path]:
    below = [path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file()]
    visible = [path for path in below if not any(part.startswith(".") for part in path.parts)]
    for kind in kinds:
        if videos := [folder / path for path in visible if path.suffix.lower() in kind]:
            return videos
    raise ConfigError(f"{folder} has no videos in it; looked for {' '.join((*FILMS, *PICTURES))}")


def open_video(path: Path, megapixels: float = MEGAPIXELS) -> Video:
    """Decode a whole video or picture into frames (F, H, W, 3), uint8.

    A file with too many pixels is refused before it fills the memory, whether or not it declares them.

    Args:
        path: The file.
        megapixels: Most pixels, in millions, of all frames together.

    Raises:
        Unreadable: The file is empty, damaged, too large or not a video.
    """
    if not path.stat().st_size:
        raise Unreadable("the file is empty")
    try:
        return (_through_pillow if path.suffix.lower() in THROUGH_PILLOW else _through_av)(path, megapixels)
    except Unreadable:
        raise
    except (av.error.FFmpegError, UnidentifiedImageError) as error:
        raise Unreadable(f"it is not a video, or a damaged one ({_short(error)})") from error
    except Exception as error:  # decoders meet bytes that nobody thought of
        raise Unreadable(f"it cannot be decoded ({type(error).__name__}: {_short(error)})") from error


def as_shown(video: Video) -> Videos:
    """Return a video in the form that scorers take: a batch of one, frames (1, F, H, W, 3), without sound."""
    return Videos(video.frames[None], video.fps)


def listen(path: Path, seen: Videos) -> Videos:
    """Return the clip `seen` with the sound of its file, (1, channels, samples), or unchanged if the file has no sound.

    Raises:
        Unreadable: The sound is damaged. Scorers that do not use the sound can still score the frames.
    """
    if path.suffix.lower() in THROUGH_PILLOW:
        return seen
    try:
        sound = read_sound(path, SAMPLES)
    except Exception as error:  # decoders meet bytes that nobody thought of
        raise Unreadable(f"its sound cannot be decoded ({_short(error)})") from error
    return replace(seen, sound=torch.from_numpy(sound.wave)[None], sample_rate=sound.rate) if sound else seen


def _short(error: Exception) -> str:
    message = getattr(error, "strerror", None) or str(error)
    return " ".join(message.split())[:120] if "identify image" not in message else "no known picture format"


def bound(frames: int, width: int, height: int, megapixels: float, declared: bool = True) -> None:
    pixels = frames * width * height / 1e6
    if pixels > megapixels:
        verb, many = "declares" if declared else "has at least", "s" if frames > 1 else ""
        raise Unreadable(
            f"it {verb} {frames} frame{many} of {width}×{height}, {pixels:,.0f} megapixels in all, above the limit "
            f"of {megapixels:g}; raise --megapixels if it is right"
        )


def _through_av(path: Path, megapixels: float) -> Video:
    with av.open(str(path)) as container:
        if not container.streams.video:
            raise Unreadable("it has no picture, only sound" if container.streams.audio else "it has no picture")
        stream = container.streams.video[0]
        width, height, rate = stream.width or 0, stream.height or 0, stream.average_rate
        if not width or not height:
            raise Unreadable("it does not say how large its frames are: it is damaged or not a video")
        declared = stream.frames or _from_duration(stream, container)
        bound(max(declared, 1), width, height, megapixels)
        # A frame may be larger inside than the file says outside: the decoder gets the limit, too.
        stream.codec_context.options = {"max_pixels": str(max(1, int(megapixels * 1e6)))}
        pictures: list[Frames] = []
        for frame in container.decode(stream):
            bound(len(pictures) + 1, frame.width, frame.height, megapixels, declared=False)
            pictures.append(rgb_frame(frame))
    if len(pictures) < WHOLE * stream.frames:
        raise Unreadable(f"it is cut short: {len(pictures)} of {stream.frames} frames are there")
    return Video(_stacked(pictures), float(rate) if rate else None)


def _from_duration(stream: "av.video.VideoStream", container: "av.container.InputContainer") -> int:
    """Estimate the number of frames from the duration, because some formats do not count their frames."""
    rate = float(stream.average_rate or 0)
    if stream.duration and stream.time_base:
        return round(float(stream.duration * stream.time_base) * rate)
    return round(container.duration / av.time_base * rate) if container.duration else 0


def _through_pillow(path: Path, megapixels: float) -> Video:
    with _opened(path) as file:  # reads the header only
        bound(1, *file.size, megapixels)
        count = int(getattr(file, "n_frames", 1))  # goes through the file without decoding
        bound(count, *file.size, megapixels)
        pictures, seconds = [], 0.0
        for i in range(count):
            file.seek(i)
            pictures.append(np.asarray(file.convert("RGB")))
            seconds += float(file.info.get("duration") or 0) / 1000
    return Video(_stacked(pictures), len(pictures) / seconds if seconds else None)


def _opened(path: Path) -> Image.Image:
    """Open a picture without Pillow's own limit on its pixels. The caller checks the limit in megapixels next."""
    before, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
    try:
        return Image.open(path)
    finally:
        Image.MAX_IMAGE_PIXELS = before


def _stacked(pictures: list[Frames]) -> Tensor:
    if not pictures:
        raise Unreadable("it has no frames")
    if sizes := {picture.shape for picture in pictures} - {pictures[0].shape}:
        raise Unreadable(f"its frames change their size, from {pictures[0].shape[:2]} to {sorted(sizes)[0][:2]}")
    return torch.from_numpy(np.stack(pictures))
