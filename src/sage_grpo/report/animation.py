"""Make an animated picture of what training changed: videos of each prompt before and after, with a tick or a cross."""

import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw
from torch import Tensor

from sage_grpo.videos import DEFAULT_FPS, FAINT, INK, PAPER, Frames, as_frames, font_of, wrap

WIDTH = 720  # of the picture: at half of it, as on a phone, texts can still be read
MARGIN, GAP = 20, 8
PROMPT, LABEL = 23, 18  # pixels of text
MET, MISSED = "#1a7f37", "#cf222e"
HOLD = 700  # milliseconds of the last frame


@dataclass(frozen=True)
class Shown:
    """One prompt with its videos before and after training, of equal seed, and whether each meets the prompt."""

    prompt: str
    before: Frames | Tensor
    after: Frames | Tensor
    met_before: bool
    met_after: bool
    seen_before: str = ""  # what a judge saw, where that can be said in a word
    seen_after: str = ""


def _mark(draw: ImageDraw.ImageDraw, right: int, top: int, side: int, met: bool) -> None:
    """Draw a tick or a cross from lines, because not every font has them."""
    colour, left = MET if met else MISSED, right - side
    box = [left, top, right, top + side]
    draw.ellipse(box, fill=colour)

    def line(*points: tuple[float, float]) -> None:
        draw.line([(left + x * side, top + y * side) for x, y in points], fill=PAPER, width=max(2, side // 9))

    if met:
        line((0.26, 0.53), (0.44, 0.70), (0.75, 0.33))
    else:
        line((0.31, 0.31), (0.69, 0.69))
        line((0.69, 0.31), (0.31, 0.69))


def _still(shown: Sequence[Shown]) -> tuple[Image.Image, list[tuple[Frames, tuple[int, int], tuple[int, int]]]]:
    """Return the picture without its videos, and each video with its place and size in the picture, in pixels."""
    first = as_frames(shown[0].before)
    columns = 1 if first.shape[2] > 2 * first.shape[1] else 2  # wide videos need all of the width
    column = (WIDTH - (columns + 1) * MARGIN) // columns
    side = (column - GAP) // 2
    prompts, labels = font_of(PROMPT), font_of(LABEL)
    height = round(side * first.shape[1] / first.shape[2])
    texts = [wrap(item.prompt, prompts, column, 2) for item in shown]
    text_height = max(map(len, texts)) * round(PROMPT * 1.3)
    row = text_height + height + round(LABEL * 1.6) + MARGIN
    sheet = Image.new("RGB", (WIDTH, MARGIN + row * -(-len(shown) // columns)), PAPER)
    draw, videos = ImageDraw.Draw(sheet), []
    for index, (item, lines) in enumerate(zip(shown, texts, strict=True)):
        left, top = MARGIN + index % columns * (column + MARGIN), MARGIN + index // columns * row
        for number, text in enumerate(lines):
            draw.text((left, top + number * round(PROMPT * 1.3)), text, INK, prompts)
        top += text_height + 4
        pair = (
            ("before", item.before, item.met_before, item.seen_before),
            ("after", item.after, item.met_after, item.seen_after),
        )
        for place, (label, video, met, seen) in enumerate(pair):
            x = left + place * (side + GAP)
            videos.append((as_frames(video), (x, top), (side, height)))
            draw.text((x, top + height + 4), f"{label}: {seen}" if seen else label, FAINT, labels)
            _mark(draw, x + side, top + height + 4, LABEL + 4, met)
    return sheet, videos


def before_after(shown: Sequence[Shown], fps: float = DEFAULT_FPS) -> bytes:
    """Return the bytes of an animated WebP with the videos of all prompts, before and after training.

    Browsers and README pages show such a file without a video player.
    """
    if not shown:
        raise ValueError("an animation before and after needs at least one prompt")
    sheet, videos = _still(shown)
    length = max(len(frames) for frames, _, _ in videos)
    pictures = []
    for number in range(length):
        picture = sheet.copy()
        for frames, place, size in videos:
            frame = Image.fromarray(np.ascontiguousarray(frames[min(number, len(frames) - 1)]))
            picture.paste(frame.resize(size, Image.Resampling.NEAREST), place)
        pictures.append(picture)
    out, each = io.BytesIO(), round(1000 / fps)
    durations = [each] * (length - 1) + [HOLD]
    pictures[0].save(
        out, "WEBP", save_all=True, append_images=pictures[1:], duration=durations, loop=0, quality=90, method=4
    )
    return out.getvalue()
