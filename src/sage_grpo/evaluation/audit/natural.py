"""Short synthetic clips that behave like filmed ones: a photograph and painted scenes under moving cameras.

`sage-grpo rewards audit` uses the clips if it is given no videos. The clips have texture at all scales, smooth motion
of camera and things and some sensor noise, and some show words. They do not replace real films: audit on those too.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from sage_grpo.config import ConfigError

FPS, FRAMES, HEIGHT, WIDTH = 16, 25, 144, 256
SENSOR_NOISE = 1.5  # grey levels
Picture = Image.Image
Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Scene:
    prompt: str
    frame: Callable[[float], Picture]  # of the time, from 0 to 1


def texture(seed: int, height: int, width: int, roughness: float = 1.2) -> Array:
    """Return random noise (height, width), from 0 to 1, with a spectrum of 1/f^roughness, as of natural pictures.

    The noise is periodic: its left edge continues its right edge, and its top its bottom.
    """
    spectrum = np.fft.rfft2(np.random.default_rng(seed).normal(size=(height, width)))
    frequency = np.hypot(np.fft.fftfreq(height)[:, None] * height, np.fft.rfftfreq(width)[None] * width)
    frequency[0, 0] = np.inf
    noise: Array = np.fft.irfft2(spectrum / frequency**roughness, s=(height, width))
    low, high = np.quantile(noise, (0.01, 0.99))
    scaled: Array = np.clip((noise - low) / (high - low), 0, 1)
    return scaled


def painted(
    seed: int,
    dark: tuple[int, int, int],
    light: tuple[int, int, int],
    size: tuple[int, int] = (512, 512),
    roughness: float = 1.2,
) -> Picture:
    """Return a picture of random texture, `size` (width, height) in pixels, in colours from `dark` to `light`."""
    amount = texture(seed, size[1], size[0], roughness)[..., None]
    return Image.fromarray((np.array(dark) * (1 - amount) + np.array(light) * amount).round().astype(np.uint8))


def photograph() -> Picture:
    """Return the public-domain photograph that comes with matplotlib."""
    path = Path(matplotlib.get_data_path()) / "sample_data" / "grace_hopper.jpg"
    if not path.is_file():
        raise ConfigError(f"the clips are made from {path}, which is not there; name videos of your own")
    return Image.open(path).convert("RGB")


def view(picture: Picture, x: float, y: float, zoom: float = 1.0, turn: float = 0.0) -> Picture:
    """Return what a camera sees that is centred at (x, y), in pixels of the picture; fractions are interpolated.

    A `zoom` above 1 enlarges. `turn` is in radians.
    """
    c, s = np.cos(turn) / zoom, np.sin(turn) / zoom
    ends = (c, -s, x - c * WIDTH / 2 + s * HEIGHT / 2, s, c, y - s * WIDTH / 2 - c * HEIGHT / 2)
    return picture.transform((WIDTH, HEIGHT), Image.Transform.AFFINE, ends, Image.Resampling.BICUBIC)


def board(words: str, paper: str, ink: str, wall: Picture, size: int = 40) -> Picture:
    """Return a copy of the picture `wall` with a sign in its middle that says `words`, in colours `paper` and `ink`."""
    wall, font = wall.copy(), ImageFont.load_default(size)
    draw, middle = ImageDraw.Draw(wall), (wall.width / 2, wall.height / 2)
    left, top, right, bottom = draw.textbbox(middle, words, font, anchor="mm")
    draw.rectangle((left - 14, top - 12, right + 14, bottom + 12), fill=paper, outline=ink, width=3)
    draw.text(middle, words, ink, font, anchor="mm")
    return wall


def disc(skin: Picture, side: int) -> tuple[Picture, Picture]:
    """Return a ball, `side` pixels wide: a square picture cut from `skin`, and a round mask of its outline."""
    big = Image.new("L", (4 * side, 4 * side))
    ImageDraw.Draw(big).ellipse((0, 0, 4 * side - 1, 4 * side - 1), fill=255)
    return skin.crop((0, 0, side, side)), big.resize((side, side), Image.Resampling.LANCZOS)


def layered(t: float, sky: Picture, hills: Picture, field: Picture) -> Picture:
    """Return a landscape seen from a train at time `t`, from 0 to 1: what is near moves faster."""
    frame = view(sky, 200 + 8 * t, 200)
    for ground, speed, height, waves in ((hills, 40, 0.5, 3.0), (field, 120, 0.75, 1.3)):
        across = (np.arange(WIDTH) + speed * t) / WIDTH * 2 * np.pi
        edge = HEIGHT * (height + 0.08 * np.sin(waves * across) + 0.03 * np.sin(2.7 * waves * across + 1))
        inside = np.clip(np.arange(HEIGHT)[:, None] - edge[None] + 0.5, 0, 1) * 255
        mask = Image.fromarray(inside.astype(np.uint8))
        frame.paste(view(ground, 180 + speed * t, 200), (0, 0), mask)
    return frame


def water(t: float, bed: Array) -> Picture:
    """Return a river bed at time `t`, from 0 to 1, under waves that bend the light."""
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH].astype(np.float64)
    slope_x = 2.5 * np.cos(x / 17 + y / 41 - 9 * t) + 1.5 * np.cos(x / 9 - y / 13 - 12 * t)
    slope_y = 2.5 * np.cos(y / 15 + x / 37 - 7 * t) + 1.0 * np.cos(y / 8 - 11 * t)
    light = bed[(y + 30 + slope_y).astype(int), (x + 30 + slope_x).astype(int)]
    glint = np.clip((slope_x + slope_y) / 6, -1, 1)
    colour = np.stack([60 + 90 * light + 18 * glint, 95 + 95 * light + 22 * glint, 105 + 85 * light + 30 * glint], -1)
    return Image.fromarray(np.clip(colour, 0, 255).astype(np.uint8))


def bouncing(t: float, room: Picture, ball: tuple[Picture, Picture]) -> Picture:
    frame, skin = room.copy(), ball[0].rotate(-200 * t, Image.Resampling.BICUBIC)
    fall = (1.6 * t + 0.5) % 1.0
    corner = (round(10 + 180 * t), round(92 - 78 * (1 - (2 * fall - 1) ** 2)))
    frame.paste(skin, corner, ball[1])
    return frame


def crossing(t: float, ground: Picture, thing: Picture) -> Picture:
    frame = view(ground, 256, 430)
    frame.paste(thing, (round(8 + 150 * t), round(30 + 12 * np.sin(3 * t))))
    return frame


def scenes() -> dict[str, Scene]:
    photo = photograph()
    sky, hills = painted(1, (70, 120, 200), (240, 245, 250), roughness=1.6), painted(2, (30, 60, 40), (110, 140, 90))
    field, bricks = painted(3, (70, 80, 20), (210, 200, 90), roughness=0.9), painted(4, (90, 40, 30), (190, 110, 90))
    stone, wood = painted(5, (60, 60, 70), (190, 185, 175), roughness=1.0), painted(6, (60, 35, 15), (170, 115, 65))
    late = board("OPEN LATE", "#1d3b66", "#f4f1e4", bricks)
    hotel, books = board("GRAND HOTEL", "#f3e6c4", "#5b1620", stone, 20), board("BOOKS", "#12402b", "#f0d878", wood, 48)
    ball, room = disc(painted(7, (150, 20, 20), (250, 190, 60)), 44), view(wood, 256, 256)
    bed, thing = texture(8, HEIGHT + 60, WIDTH + 60, 1.1), photo.crop((180, 60, 250, 140))
    return {
        "portrait-pan": Scene("a portrait of an officer", lambda t: view(photo, 200 + 90 * t, 150 + 50 * t)),
        "portrait-zoom": Scene("a portrait of an officer", lambda t: view(photo, 250, 160, 1 + 0.3 * t)),
        "portrait-turn": Scene("a portrait of an officer", lambda t: view(photo, 250, 250, 1.1, 0.06 * t)),
        "crossing": Scene("a picture is carried past a uniform", lambda t: crossing(t, photo, thing)),
        "train": Scene("green hills seen from a train", lambda t: layered(t, sky, hills, field)),
        "water": Scene("clear water over a river bed", lambda t: water(t, bed)),
        "ball": Scene("a red ball bounces in front of a wooden wall", lambda t: bouncing(t, room, ball)),
        "sign": Scene('a sign that says "OPEN LATE"', lambda t: view(late, 250 + 14 * t, 254 + 5 * t)),
        "hotel": Scene('the words "GRAND HOTEL" on a stone wall', lambda t: view(hotel, 256, 256, 0.8 + 0.08 * t)),
        "books": Scene('a shop front with the word "BOOKS"', lambda t: view(books, 275 - 40 * t, 256, 1.0, 0.1 * t)),
    }


def clip(name: str, scene: Scene, frames: int = FRAMES) -> Tensor:
    """Return the frames of a scene with sensor noise, (F, H, W, 3), uint8.

    The seed of the noise is made from `name`.
    """
    random = np.random.default_rng([ord(letter) for letter in name])
    pictures = [np.asarray(scene.frame(i / max(frames - 1, 1)), np.float64) for i in range(frames)]
    noisy = np.stack([picture + random.normal(0, SENSOR_NOISE, picture.shape) for picture in pictures])
    return torch.from_numpy(noisy.round().clip(0, 255).astype(np.uint8))
