"""Clips of four digits in one colour that drift on black: 10,000 numbers × four colours, a tenth of numbers held out.

Glyphs are drawn once by PIL and then placed by bilinear sampling. So a clip is a smooth function of five continuous
numbers: midpoint x and y, drift x and y, and size.

The distance of any video to the true rendering of its prompt is found by a small least-squares fit. The fit also gives
a second reader, independent of OCR: at each place, the digit whose glyph fits best.
"""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import matplotlib
import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor
from torch.nn import functional as F

from sage_grpo.lab.captions import mistaken, some_empty
from sage_grpo.lab.fitting import differences, improve

FRAMES, HEIGHT, WIDTH = 4, 24, 72
DIGITS = 4
COLOURS = ("white", "yellow", "green", "pink")
PALETTE = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.85, 0.1], [0.2, 0.95, 0.3], [1.0, 0.45, 0.75]])
LOW = torch.tensor([-2.0, -1.5, -1.5, -0.75, 18.0])  # pixels: midpoint x and y, drift x and y to the last frame, em
HIGH = torch.tensor([2.0, 1.5, 1.5, 0.75, 20.0])
EM = 64  # pixels of the drawn glyphs
CELL = (0.88, 0.70)  # height and width of a digit's cell in ems; the font's digits are 0.696 wide
CHECK = (7, 3, 9, 1)  # a number whose weighted digits sum to a multiple of ten is held out
CAPTION_ERRORS = 0.13
SHIFTS = torch.tensor([-2.25, 0.0, 2.25], dtype=torch.float64)  # where a fit starts: a wrong digit moves the light
WANTED = re.compile(r"(?<!\d)(\d{4})(?!\d)")


@dataclass(frozen=True)
class Scene:
    """The content of N clips, one row per clip.

    `digits` is (N, 4), and `colour` (N,) has indices into `COLOURS`. `numbers` (N, 5) are in pixels: midpoint x and y,
    drift x and y from there to the last frame, and font size.
    """

    digits: Tensor
    colour: Tensor
    numbers: Tensor

    def at(self, rows: Tensor) -> "Scene":
        """Return the scene of the clips with these indices."""
        return Scene(self.digits[rows], self.colour[rows], self.numbers[rows])

    @property
    def prompts(self) -> list[str]:
        rows = zip(self.digits.tolist(), self.colour.tolist(), strict=True)
        return [write_prompt("".join(map(str, digits)), COLOURS[colour]) for digits, colour in rows]


def write_prompt(number: str, colour: str) -> str:
    return f'the number "{number}" in {colour}'


def parse_prompt(text: str) -> tuple[list[int], int]:
    """Return the four digits of a prompt, and the index of its colour in `COLOURS`."""
    number = WANTED.search(text)
    colour = next((i for i, name in enumerate(COLOURS) if name in text.lower().split()), None)
    if number is None or colour is None:
        raise ValueError(f"prompt {text!r} needs a number of {DIGITS} digits and one of {', '.join(COLOURS)}")
    return [int(digit) for digit in number[1]], colour


def held_out(digits: Tensor) -> Tensor:
    """Return a boolean mask (…): True for each number that is held out, given its digits (…, 4).

    1,000 of the 10,000 numbers are held out; neither pre-training nor post-training sees them. Among these 1,000, every
    digit is equally frequent at every place.
    """
    return (digits * torch.tensor(CHECK)).sum(-1) % 10 == 0


def numbers(*, fresh: bool) -> Tensor:
    """Return the digits (N, 4) of all held-out numbers if `fresh`, else of all other numbers."""
    every = torch.cartesian_prod(*[torch.arange(10)] * DIGITS)
    return every[held_out(every) == fresh]


def training_prompts() -> list[str]:
    """Return one prompt for every number that is not held out. The four colours take turns."""
    digits = numbers(fresh=False)
    return Scene(digits, torch.arange(len(digits)) % len(COLOURS), torch.empty(0)).prompts


def fresh_prompts(count: int) -> list[str]:
    """Return `count` prompts of held-out numbers, spread over all of these. The four colours take turns.

    A number is repeated only if `count` is above 1,000.
    """
    digits = numbers(fresh=True)
    order = torch.arange(count) * 377 % len(digits)  # 377 and 1,000 share no factor: every number once a round
    return Scene(digits[order], torch.arange(count) % len(COLOURS), torch.empty(0)).prompts


def random_scene(count: int, generator: torch.Generator) -> Scene:
    """Return the scene of `count` random clips, none of them with a held-out number.

    If a random number is held out, its last digit is raised by one (9 becomes 0), because the next number is never held
    out.
    """
    digits = torch.randint(10, (count, DIGITS), generator=generator)
    digits[:, -1] = (digits[:, -1] + held_out(digits)) % 10
    colour = torch.randint(len(COLOURS), (count,), generator=generator)
    return Scene(digits, colour, LOW + (HIGH - LOW) * torch.rand(count, len(LOW), generator=generator))


def captions(scene: Scene, generator: torch.Generator) -> list[str]:
    """Return one caption per clip for pre-training, which may be wrong or empty.

    Every digit is wrong with probability `CAPTION_ERRORS`, the colour never. A tenth of the captions is empty.
    """
    told = mistaken(scene.digits, 10, CAPTION_ERRORS, generator)
    return some_empty(Scene(told, scene.colour, scene.numbers).prompts, generator)


@cache
def glyphs() -> Tensor:
    """Return pictures (10, rows, columns) of the digits 0 to 9, from 0 to 1, blurred to the resolution of the clips."""
    # matplotlib brings this font along: the same world on every machine
    font = ImageFont.truetype(str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans-Bold.ttf"), EM)
    rows, columns = (round(EM * side) for side in CELL)
    drawn = []
    for digit in "0123456789":
        cell = Image.new("L", (columns, rows), 0)
        ImageDraw.Draw(cell).text((columns / 2, rows / 2), digit, 255, font, anchor="mm")
        drawn.append(np.asarray(cell, dtype=np.float32) / 255)
    sharp = torch.from_numpy(np.stack(drawn))[:, None]
    # a pixel of a clip is three or four of these wide: the mean over two boxes of three keeps edges smooth in `numbers`
    for _ in range(2):
        sharp = F.avg_pool2d(sharp, 3, 1, 1, count_include_pad=False)
    return sharp[:, 0]


def place(looks: Tensor, numbers: Tensor) -> Tensor:
    """Place pictures (N, rows, columns) of four-digit numbers in clips, and return the coverage of pixels, 0 to 1.

    The coverage is (N, FRAMES, HEIGHT, WIDTH). `numbers` (N, 5) are the continuous numbers of a `Scene`: midpoint,
    drift and size.
    """
    time = torch.linspace(-1, 1, FRAMES, dtype=numbers.dtype)
    centre = numbers[:, None, :2] + numbers[:, None, 2:4] * time[:, None]
    half = numbers[:, 4:] / 2 * torch.tensor([CELL[1] * DIGITS, CELL[0]], dtype=numbers.dtype)
    x = torch.arange(WIDTH, dtype=numbers.dtype) + 0.5 - WIDTH / 2
    y = torch.arange(HEIGHT, dtype=numbers.dtype) + 0.5 - HEIGHT / 2
    across = ((x - centre[..., :1]) / half[:, None, :1])[:, :, None, :].expand(-1, -1, HEIGHT, -1)
    down = ((y - centre[..., 1:]) / half[:, None, 1:])[..., None].expand(-1, -1, -1, WIDTH)
    grid = torch.stack([across, down], -1).flatten(1, 2)
    coverage = F.grid_sample(looks[:, None].to(numbers), grid, align_corners=False)
    return coverage.view(-1, FRAMES, HEIGHT, WIDTH)


def looks_of(digits: Tensor) -> Tensor:
    """Return pictures (N, rows, columns) of four digits side by side, from the digits (N, 4)."""
    return glyphs()[digits].permute(0, 2, 1, 3).flatten(2)


def render(scene: Scene) -> Tensor:
    """Return the clips of a scene, in [-1, 1], (N, 3, FRAMES, HEIGHT, WIDTH)."""
    mask = place(looks_of(scene.digits), scene.numbers)
    return 2 * mask[:, None] * PALETTE.to(mask)[scene.colour][:, :, None, None, None] - 1


@dataclass(frozen=True)
class Fit:
    """The comparison of N videos with the true renderings of their prompts, one row per video."""

    numbers: Tensor  # of the nearest rendering
    distance: Tensor  # |residual| / |nearest rendering|
    digits: Tensor  # what the second reader sees, (N, 4)
    colour: Tensor  # nearest of the palette
    tint: Tensor  # how far the mean colour of the light is from the one asked for; 1 is a whole channel


def as_asked(found: Fit, prompts: list[str]) -> Tensor:
    """Return clips (N, 3, FRAMES, HEIGHT, WIDTH) of what the prompts ask for, at the places and sizes of `found`.

    The mean distance between such clips of one prompt is the diversity in place, drift and size alone. A wrong digit or
    colour in a video adds nothing to it, because these clips show the right one.
    """
    scenes = [parse_prompt(prompt) for prompt in prompts]
    return render(Scene(torch.tensor([d for d, _ in scenes]), torch.tensor([c for _, c in scenes]), found.numbers))


def _start(mass: Tensor, digits: Tensor) -> Tensor:
    """Return a first guess of the continuous numbers (N, 5), from brightness `mass` (N, F, H, W) and digits (N, 4).

    The guess takes the centre of the brightness in each frame, less the centre that the digits have when they are
    rendered in the middle.
    """
    x = torch.arange(WIDTH, dtype=mass.dtype) + 0.5 - WIDTH / 2
    y = torch.arange(HEIGHT, dtype=mass.dtype) + 0.5 - HEIGHT / 2
    time = torch.linspace(-1, 1, FRAMES, dtype=mass.dtype)

    def centres(light: Tensor) -> Tensor:
        weight = light.sum((2, 3)).clamp(min=1e-3)
        return torch.stack([(light * x).sum((2, 3)) / weight, (light * y[:, None]).sum((2, 3)) / weight], -1)

    still = torch.zeros(len(mass), len(LOW), dtype=mass.dtype)
    still[:, 4] = (LOW[4] + HIGH[4]) / 2
    centre = centres(mass) - centres(place(looks_of(digits), still))
    still[:, :2] = centre.mean(1)
    still[:, 2:4] = (centre * time[:, None]).sum(1) / time.square().sum()
    return still


def fit(videos: Tensor, prompts: list[str]) -> Fit:
    """Compare videos (N, 3, F, H, W) in [-1, 1] with the nearest rendering of what each prompt asks for.

    Only place, drift and size are fitted, within the world's range. Digits and colour are those of the prompt.
    """
    scenes = [parse_prompt(prompt) for prompt in prompts]
    digits, colour = torch.tensor([d for d, _ in scenes]), torch.tensor([c for _, c in scenes])
    light = ((videos + 1) / 2).double().clamp(0, 1)  # black becomes 0
    palette = PALETTE.double()
    projected = torch.einsum("nc,ncfhw->nfhw", palette[colour], light).flatten(1)
    total, strength = light.flatten(1).square().sum(1), palette[colour].square().sum(1)
    looks, bounds = looks_of(digits).double(), (LOW.double(), HIGH.double())
    starts = _start(light.mean(1), digits)[None] + SHIFTS[:, None, None] * torch.eye(len(LOW), dtype=torch.float64)[0]

    def search(start: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
        def masks(numbers: Tensor) -> Tensor:
            return place(looks, numbers).flatten(1)

        return improve(start.clamp(*bounds), masks, differences(masks), projected, total, strength, bounds, iterations)

    rough = [search(start, 3) for start in starts]
    best = torch.stack([squared for _, squared in rough]).argmin(0)
    fitted, squared = search(torch.stack([n for n, _ in rough])[best, torch.arange(len(videos))], 8)
    energy = strength * place(looks, fitted).flatten(1).square().sum(1)
    distance = (squared.clamp(min=0) / energy).sqrt()
    tint = (light * light.amax(1, keepdim=True).square()).sum((2, 3, 4))
    tint = tint / tint.amax(1, keepdim=True).clamp(min=1e-3)
    away = torch.cdist(tint, palette / palette.amax(1, keepdim=True))
    off = away.gather(1, colour[:, None])[:, 0]
    return Fit(fitted.float(), distance.float(), read(light, fitted), away.argmin(1), off.float())


def read(light: Tensor, numbers: Tensor) -> Tensor:
    """Return the digits (N, 4) that the second reader sees: at each place, the one whose glyph is nearest to the video.

    `light` (N, 3, F, H, W) is the video with black as 0. `numbers` (N, 5) say where the digits are and how large.
    """
    brightness = light.amax(1).flatten(1)
    answers = []
    for position in range(DIGITS):
        empty = torch.zeros(DIGITS, *glyphs().shape[1:])
        empty[position] = 1  # the cell of this place, in which the digits compete
        cell = place(empty.permute(1, 0, 2).flatten(1)[None].expand(len(light), -1, -1), numbers).flatten(1)
        errors = []
        for glyph in glyphs():
            alone = torch.zeros_like(empty)
            alone[position] = glyph
            mask = place(alone.permute(1, 0, 2).flatten(1)[None].expand(len(light), -1, -1), numbers).flatten(1)
            errors.append((cell * (brightness - mask).square()).sum(1))
        answers.append(torch.stack(errors, 1).argmin(1))
    return torch.stack(answers, 1)
