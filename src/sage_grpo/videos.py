"""Functions that write and read video files with sound, and that draw the frames of many videos in one picture."""

import io
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import av
import matplotlib
import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from sage_grpo.files import atomic_write

Frames = npt.NDArray[np.uint8]

DEFAULT_FPS = 8  # where a model does not know its own
VIEWABLE = 128  # pixels of the smaller side below which a video is too small to judge
AUDIBLE, LAYOUTS = 48_000, {1: "mono", 2: "stereo"}
AAC: dict[str, Any] = {"bit_rate": 192_000, "options": {"aac_coder": "fast"}}  # the slow one adds cracks to pure tones
BT709, LIMITED_RANGE = 1, 1  # as the H.264 standard numbers them
LARGEST_CELL = 192  # on a contact sheet
MARGIN, LABEL_WIDTH, TEXT = 12, 190, 14
INK, FAINT, PAPER = "#1a1a1a", "#777777", "#ffffff"


def as_frames(frames: Frames | Tensor) -> Frames:
    array = frames.detach().cpu().numpy() if isinstance(frames, Tensor) else np.asarray(frames)
    if array.dtype != np.uint8 or array.ndim != 4 or array.shape[-1] != 3 or 0 in array.shape:
        raise ValueError(
            f"a video is uint8 (frames, height, width, 3) with at least one frame; this is {array.dtype} {array.shape}"
        )
    return array


def _enlarged(frames: Frames, scale: int | None) -> Frames:
    """Return frames enlarged by repeating whole pixels, by default so that the smaller side has at least 128 pixels."""
    scale = scale or max(1, -(-VIEWABLE // min(frames.shape[1:3])))
    return frames.repeat(scale, axis=1).repeat(scale, axis=2)


class SoundTrack(NamedTuple):
    """The sound of one video: its waveform and its sample rate."""

    wave: npt.NDArray[np.float32]  # (channels, samples) from -1 to 1
    rate: int  # samples a second


def sound_of(sounds: Tensor | None, rate: int | None, i: int) -> SoundTrack | None:
    """Return the sound of video `i` of a batch, or None if the model makes no sound.

    Args:
        sounds: Waveforms of all videos (B, channels, samples), from -1 to 1; None if the model makes no sound.
        rate: Samples per second; None if the model makes no sound.
        i: Index of the video in the batch.
    """
    return None if sounds is None or rate is None else SoundTrack(sounds[i].float().cpu().numpy(), rate)


def mp4_bytes(
    frames: Frames | Tensor, fps: float | None = None, scale: int | None = None, sound: SoundTrack | None = None
) -> bytes:
    """Return the bytes of an MP4 file that every browser plays: H.264 pictures, and AAC sound if there is any.

    Args:
        frames: (F, H, W, 3), uint8.
        fps: Frames per second; None for 8.
        scale: Whole factor by which the video is enlarged. None chooses one that gives the smaller side at least 128
            pixels.
        sound: The sound of the video; None for a video without sound.
    """
    array = _enlarged(as_frames(frames), scale)
    height, width = array.shape[1:3]
    # yuv420p halves both sides; an odd side gets its last line twice rather than losing it.
    array = np.pad(array, ((0, 0), (0, height % 2), (0, width % 2), (0, 0)), mode="edge")
    out = io.BytesIO()
    with av.open(out, "w", format="mp4") as container:
        stream = container.add_stream(
            "libx264", rate=Fraction(fps or DEFAULT_FPS).limit_denominator(1000), options={"crf": "16"}
        )
        stream.height, stream.width, stream.pix_fmt = array.shape[1], array.shape[2], "yuv420p"
        # Said explicitly, for players guess the colours of an unmarked file from its size.
        context = stream.codec_context
        context.colorspace = context.color_primaries = context.color_trc = BT709
        context.color_range = LIMITED_RANGE
        heard = container.add_stream("aac", rate=AUDIBLE, layout=LAYOUTS[len(sound.wave)], **AAC) if sound else None
        for picture in array:
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
            container.mux(stream.encode(frame.reformat(format="yuv420p", dst_colorspace="ITU709")))
        container.mux(stream.encode())
        if sound and heard:
            _add_sound(container, heard, sound)
    return out.getvalue()


def _add_sound(container: av.container.OutputContainer, stream: av.AudioStream, sound: SoundTrack) -> None:
    layout = LAYOUTS[len(sound.wave)]
    whole = av.AudioFrame.from_ndarray(np.ascontiguousarray(sound.wave, dtype=np.float32), format="fltp", layout=layout)
    whole.sample_rate, whole.pts = sound.rate, 0  # else the silence that the codec begins with is heard
    to_audible = av.AudioResampler(format="fltp", layout=layout, rate=AUDIBLE)  # not every player knows every rate
    for frame in [*to_audible.resample(whole), *to_audible.resample(None)]:
        container.mux(stream.encode(frame))
    container.mux(stream.encode())


def write_mp4(
    path: Path,
    frames: Frames | Tensor,
    fps: float | None = None,
    scale: int | None = None,
    sound: SoundTrack | None = None,
) -> None:
    atomic_write(path, mp4_bytes(frames, fps, scale, sound))


def write_frames(
    path: Path, frames: Frames | Tensor, fps: float | None = None, sound: SoundTrack | None = None
) -> Path:
    """Write frames (F, H, W, 3), uint8, as a PNG file if F is 1, else as an MP4 file, and return the file's path.

    The file's path is `path` with the ending `.png` or `.mp4`.
    """
    array = as_frames(frames)
    if len(array) > 1:
        write_mp4(path.with_suffix(".mp4"), array, fps, sound=sound)
        return path.with_suffix(".mp4")
    out = io.BytesIO()
    Image.fromarray(_enlarged(array, None)[0]).save(out, "PNG")
    atomic_write(path.with_suffix(".png"), out.getvalue())
    return path.with_suffix(".png")


def frame_rate(path: Path) -> float:
    with av.open(str(path)) as container:
        return float(container.streams.video[0].average_rate or DEFAULT_FPS)


def read_mp4(path: Path) -> Frames:
    with av.open(str(path)) as container:
        return np.stack([rgb_frame(frame) for frame in container.decode(video=0)])


def read_sound(path: Path, limit: int | None = None) -> SoundTrack | None:
    """Return the sound of a video file, from its first picture on; None if the file has no audio track.

    Raises:
        ValueError: The sound has more than `limit` values: samples times channels.
    """
    with av.open(str(path)) as container:
        if not container.streams.audio:
            return None
        stream = container.streams.audio[0]
        to_floats = av.AudioResampler(format="fltp", layout=stream.layout.name, rate=stream.rate)
        parts: list[npt.NDArray[np.float32]] = []
        late, size = None, 0  # samples between the first picture and the first sound; numbers so far
        for frame in container.decode(stream):
            if late is None:
                late = round((float(frame.time or 0) - _start(container)) * stream.rate)
                size = max(late, 0) * len(frame.layout.channels)
            size += frame.samples * len(frame.layout.channels)
            if limit and size > limit:
                raise ValueError(f"its sound has more than {limit:,} numbers")
            parts += [np.asarray(part.to_ndarray(), np.float32) for part in to_floats.resample(frame)]
        if not parts or late is None:
            return None
        length = round((stream.duration or 0) * (stream.time_base or 0) * stream.rate)  # the last block is filled up
        wave = np.concatenate(parts, axis=1)[:, max(-late, 0) : length or None]
        return SoundTrack(np.pad(wave, ((0, 0), (max(late, 0), 0))), stream.rate) if wave.size else None


def _start(container: av.container.InputContainer) -> float:
    """Return the time of the file's first picture in seconds, or 0 if the file has no pictures."""
    pictures = container.streams.video
    return float((pictures[0].start_time or 0) * (pictures[0].time_base or 0)) if pictures else 0.0


def rgb_frame(frame: av.VideoFrame) -> Frames:
    # RGB has no such space, but PyAV before 17 heeds the file's only when told another to go to.
    source, target = ("ITU709", "ITU601") if frame.colorspace == BT709 else (None, None)
    return np.asarray(frame.reformat(format="rgb24", src_colorspace=source, dst_colorspace=target).to_ndarray())


def font_of(size: int) -> ImageFont.FreeTypeFont:
    # matplotlib brings this font along: the same picture on every machine, Greek letters and arrows included.
    return ImageFont.truetype(str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"), size)


def wrap(text: str, font: ImageFont.FreeTypeFont, width: int, lines: int) -> list[str]:
    """Return `text` split into at most `lines` lines, each at most `width` pixels wide in `font`.

    If the text does not fit, it is cut, and the last line ends in an ellipsis.
    """
    out: list[str] = []
    rest = " ".join(text.split())
    while rest:
        if font.getlength(rest) <= width:
            return [*out, rest]
        if len(out) == lines - 1:
            while rest and font.getlength(rest + "…") > width:
                rest = rest[:-1]
            return [*out, rest.rstrip() + "…"]
        fits = next(n for n in range(len(rest), 0, -1) if n == 1 or font.getlength(rest[:n]) <= width)
        space = rest.rfind(" ", 0, fits + 1)
        cut = space if space > 0 else fits  # a word longer than the line is cut
        out.append(rest[:cut].rstrip())
        rest = rest[cut:].lstrip()
    return out


def _cells(frames: Frames, columns: int) -> list[tuple[int, Image.Image]]:
    """Return at most `columns` evenly spaced frames, each as (index of the frame, picture of a viewable size)."""
    count = len(frames)
    numbers = np.unique(np.linspace(0, count - 1, min(columns, count)).round().astype(int))
    enlarged = _enlarged(frames[numbers], None)
    pictures = [Image.fromarray(frame) for frame in enlarged]
    for picture in pictures:
        picture.thumbnail((LARGEST_CELL, LARGEST_CELL), Image.Resampling.BOX)
    return list(zip(numbers.tolist(), pictures, strict=True))


def contact_sheet(
    path: Path, rows: Sequence[tuple[str, Frames | Tensor]], *, columns: int = 8, title: str = ""
) -> None:
    """Write a PNG picture with one row per video: its label, then evenly spaced frames from left to right.

    Under each frame is its index in the video.

    Args:
        path: File to write.
        rows: The label and the frames (F, H, W, 3), uint8, of each video.
        columns: Largest number of frames per row.
        title: Heading of the picture; empty for none.
    """
    if not rows or columns < 1:
        raise ValueError(f"a contact sheet needs a video and a column; given {len(rows)} videos, columns={columns}")
    font, small, large = font_of(TEXT), font_of(TEXT - 3), font_of(TEXT + 4)
    line, caption = round(TEXT * 1.35), TEXT + 4
    strips = [(label, _cells(as_frames(frames), columns)) for label, frames in rows]
    labels = min(LABEL_WIDTH, round(max(font.getlength(label) for label, _ in rows)) + 1)
    widths = [sum(cell.width + 4 for _, cell in cells) for _, cells in strips]
    heights = [max(cell.height for _, cell in cells) + caption for _, cells in strips]
    width = labels + 3 * MARGIN + max(widths)
    heading = wrap(title, large, width - 2 * MARGIN, 3)
    top = MARGIN + len(heading) * round(line * 1.3) + (MARGIN if heading else 0)
    sheet = Image.new("RGB", (width, top + sum(heights) + MARGIN * len(rows)), PAPER)
    draw = ImageDraw.Draw(sheet)
    for i, text in enumerate(heading):
        draw.text((MARGIN, MARGIN + i * round(line * 1.3)), text, INK, large)
    for (label, cells), height in zip(strips, heights, strict=True):
        for i, text in enumerate(wrap(label, font, labels, max(1, (height - caption) // line))):
            draw.text((MARGIN, top + i * line), text, INK, font)
        left = labels + 2 * MARGIN
        for number, cell in cells:
            sheet.paste(cell, (left, top))
            draw.text((left + cell.width / 2, top + cell.height + 2), str(number), FAINT, small, anchor="ma")
            left += cell.width + 4
        top += height + MARGIN
    out = io.BytesIO()
    sheet.save(out, "PNG")
    atomic_write(path, out.getvalue())
