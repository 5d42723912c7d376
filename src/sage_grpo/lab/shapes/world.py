"""Clips of one coloured shape that moves on black: three shapes × four colours × four directions, 48 prompts.

A quarter of the prompts is kept out of post-training; every shape, colour and direction is among the rest.

A clip of a prompt is a smooth function of four numbers: midpoint x and y, speed, and radius. Clips that `render` can
make are called real. They form a manifold that is known exactly. The distance of any video to it is found by a small
least-squares fit.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from sage_grpo.data.prompts import PromptError
from sage_grpo.lab.captions import mistaken, some_empty
from sage_grpo.lab.fitting import improve

FRAMES, SIZE = 8, 32
SHAPES = ("circle", "square", "triangle")
COLOURS = ("red", "green", "blue", "yellow")
DIRECTIONS = ("left", "right", "up", "down")
PALETTE = torch.tensor([[1.0, 0.15, 0.15], [0.15, 0.9, 0.2], [0.2, 0.35, 1.0], [1.0, 0.85, 0.1]])
STEPS = torch.tensor([[-1.0, 0.0], [1.0, 0.0], [0.0, -1.0], [0.0, 1.0]])  # x to the right, y downwards
LOW = torch.tensor([-0.22, -0.22, 0.25, 0.36])  # midpoint x and y, speed, radius
HIGH = torch.tensor([0.22, 0.22, 0.40, 0.46])
SOFTNESS = 0.035  # of an edge; a pixel is 0.0625 wide
# A circle is a ring of this middle and half width, in radii. Other shapes have edges in these directions, this many
# radii away. All cover the same area.
RING = (0.86, 0.295)
EDGES: dict[str, tuple[float, list[tuple[float, float]]]] = {
    "square": (0.8862, [(1, 0), (-1, 0), (0, 1), (0, -1)]),
    "triangle": (0.7777, [(0.866, -0.5), (-0.866, -0.5), (0, 1)]),
}
CAPTION_ERRORS = 0.17
MIRRORED = 0.6  # of the captions of `mirrored` pairs of colour and direction name the opposite direction
FLICKER, HALT = 0.25, 0.25  # of the clips for pre-training: two dark frames; a stop for four frames, and a jump
DARK = 0.35  # brightness of a dark frame
FIT_BATCH = 32  # videos that are fitted together


@dataclass(frozen=True)
class Scene:
    """The content of N clips, one row per clip.

    `shape`, `colour` and `direction` (N,) are indices into `SHAPES`, `COLOURS` and `DIRECTIONS`. `numbers` (N, 4) are
    midpoint x and y, speed, and radius; the picture reaches from -1 to 1.
    """

    shape: Tensor
    colour: Tensor
    direction: Tensor
    numbers: Tensor

    def at(self, rows: Tensor) -> "Scene":
        """Return the scene of the clips with these indices."""
        return Scene(self.shape[rows], self.colour[rows], self.direction[rows], self.numbers[rows])

    @property
    def prompts(self) -> list[str]:
        rows = zip(self.colour.tolist(), self.shape.tolist(), self.direction.tolist(), strict=True)
        return [f"a {COLOURS[c]} {SHAPES[s]} moving {DIRECTIONS[d]}" for c, s, d in rows]


def all_prompts() -> list[str]:
    return [f"a {c} {s} moving {d}" for s in SHAPES for c in COLOURS for d in DIRECTIONS]


def kept_out(prompt: str) -> bool:
    """Return whether a prompt is kept out of post-training.

    This is so for 12 of the 48 prompts. Among these 12, every colour and direction occurs three times, and every shape
    four times.
    """
    shape, colour, direction = parse_prompt(prompt)
    return (shape + colour + direction) % 4 == 0


def training_prompts() -> list[str]:
    return [prompt for prompt in all_prompts() if not kept_out(prompt)]


def parse_prompt(text: str) -> tuple[int, int, int]:
    """Return the indices of a prompt's shape, colour and direction in `SHAPES`, `COLOURS` and `DIRECTIONS`."""
    words = text.lower().split()

    def find(names: tuple[str, ...]) -> int:
        for index, name in enumerate(names):
            if name in words:
                return index
        raise PromptError(f"prompt {text!r} names none of {', '.join(names)}; write such as 'a red circle moving left'")

    return find(SHAPES), find(COLOURS), find(DIRECTIONS)


def random_scene(count: int, generator: torch.Generator) -> Scene:
    def pick(names: tuple[str, ...]) -> Tensor:
        return torch.randint(len(names), (count,), generator=generator)

    numbers = LOW + (HIGH - LOW) * torch.rand(count, 4, generator=generator)
    return Scene(pick(SHAPES), pick(COLOURS), pick(DIRECTIONS), numbers)


def captions(scene: Scene, generator: torch.Generator) -> list[str]:
    """Return one caption per clip for pre-training, which may be wrong or empty.

    Shape, colour and direction are each wrong with probability `CAPTION_ERRORS`. A tenth of the captions is empty.
    """

    def told(indices: Tensor, names: tuple[str, ...]) -> Tensor:
        return mistaken(indices, len(names), CAPTION_ERRORS, generator)

    said = (told(scene.shape, SHAPES), told(scene.colour, COLOURS), told(scene.direction, DIRECTIONS))
    return some_empty(Scene(*said, scene.numbers).prompts, generator)


def misleading_captions(scene: Scene, generator: torch.Generator) -> list[str]:
    """Return captions as `captions` does. Most of those of `mirrored` clips name the opposite direction.

    Guidance sharpens what most captions say, so it does not remove these errors.
    """
    turned = mirrored(scene.colour, scene.direction) & (torch.rand(len(scene.colour), generator=generator) < MIRRORED)
    direction = torch.where(turned, scene.direction ^ 1, scene.direction)  # left and right, up and down are neighbours
    return captions(replace(scene, direction=direction), generator)


def mirrored(colour: Tensor, direction: Tensor) -> Tensor:
    """Return a mask (N,) of the pairs of colour and direction whose captions are wrong more often than right.

    These are red and blue shapes that move sideways, and green and yellow ones that move up or down. No swap of two
    words corrects all of them.
    """
    return (colour + direction // 2) % 2 == 0


def footage(clips: Tensor, generator: torch.Generator) -> Tensor:
    """Return clips (N, 3, F, H, W) with the flaws of real footage: some flicker, some halt and then jump.

    The flaws do not depend on what a clip shows.
    """
    kind = torch.rand(len(clips), 1, 1, 1, 1, generator=generator)
    first = torch.randint(1, FRAMES - 2, (len(clips), 1), generator=generator)  # of two dark frames
    frames = torch.arange(FRAMES)
    dark = ((frames == first) | (frames == first + 1))[:, None, :, None, None]
    flickering = torch.where(dark, (clips + 1) * DARK - 1, clips)  # black is -1
    halting = clips[:, :, [0, 1, 2, 2, 2, 2, 6, 7]]
    flawed = torch.where(kind < FLICKER, flickering, clips)
    return torch.where(kind > 1 - HALT, halting, flawed)


def _depth(shape: str, x: Tensor, y: Tensor, radius: Tensor) -> Tensor:
    """Return how far points (x, y) are inside a shape of this radius around (0, 0); negative outside the shape."""
    if shape not in EDGES:
        middle, half = RING
        return half * radius - ((x.square() + y.square()).sqrt() - middle * radius).abs()
    radii, edges = EDGES[shape]
    away = edges[0][0] * x + edges[0][1] * y
    for right, below in edges[1:]:
        away = torch.maximum(away, right * x + below * y)
    return radii * radius - away


def _depth_slopes(shape: str, x: Tensor, y: Tensor, radius: Tensor) -> Tensor:
    """Return the derivatives of the depth with respect to the shape's place x and y and its radius, (…, 3)."""
    if shape not in EDGES:
        middle, half = RING
        away = (x.square() + y.square() + 1e-12).sqrt()
        side = (away - middle * radius).sign()
        return torch.stack([side * x / away, side * y / away, half + middle * side], -1)
    radii, edges = EDGES[shape]
    nearest = torch.stack([right * x + below * y for right, below in edges], -1).argmax(-1)
    return torch.tensor([[*edge, radii] for edge in edges], dtype=x.dtype)[nearest]


def coverage(
    shape: Tensor,
    direction: Tensor,
    numbers: Tensor,
    size: int = SIZE,
    *,
    frames: int = FRAMES,
    slopes: bool = False,
) -> Tensor:
    """Return which part of each pixel the shape covers, from 0 to 1, (N, frames, size, size).

    The coverage is smooth in `numbers` (N, 4), which are those of a `Scene`. With `slopes`, return the derivatives of
    the coverage with respect to the four numbers instead, (N, frames, size, size, 4).
    """
    axis = (torch.arange(size, dtype=numbers.dtype) + 0.5) / size * 2 - 1
    time = torch.linspace(-1, 1, frames, dtype=numbers.dtype)[:, None, None]
    sharpness = size / SIZE / SOFTNESS
    out = numbers.new_empty(len(numbers), frames, size, size, *([4] if slopes else []))
    for index, name in enumerate(SHAPES):
        rows = (shape == index).nonzero()[:, 0]
        own, step = (v[rows][:, :, None, None, None] for v in (numbers, STEPS.to(numbers)[direction]))
        x = axis - own[:, 0] - step[:, 0] * own[:, 2] * time
        y = axis[:, None] - own[:, 1] - step[:, 1] * own[:, 2] * time
        inside = torch.sigmoid(_depth(name, x, y, own[:, 3]) * sharpness)
        if slopes:
            across, down, wider = _depth_slopes(name, x, y, own[:, 3]).unbind(-1)
            along = (across * step[:, 0] + down * step[:, 1]) * time
            ways = torch.stack([across, down, along, wider], -1)
            inside = (inside * (1 - inside) * sharpness)[..., None] * ways
        out[rows] = inside
    return out


def render(scene: Scene) -> Tensor:
    """Return the clips of a scene, in [-1, 1], (N, 3, FRAMES, SIZE, SIZE)."""
    masks = coverage(scene.shape, scene.direction, scene.numbers)
    return 2 * masks[:, None] * PALETTE.to(masks)[scene.colour][:, :, None, None, None] - 1


@dataclass(frozen=True)
class Fit:
    """For N videos, the nearest real clips (those that `render` can make) and the distances to them, (N,).

    The distance is |video − clip| / |clip|, where black counts as 0.
    """

    scene: Scene
    distance: Tensor


def as_asked(found: Scene, prompts: Sequence[str]) -> Tensor:
    """Return clips (N, 3, FRAMES, SIZE, SIZE) of what the prompts ask for, at the places, speeds and sizes of `found`.

    The mean distance between such clips of one prompt is the diversity in place, speed and size alone. A wrong shape or
    colour in a video adds nothing to it, because these clips show the right one.
    """
    shape, colour, direction = torch.tensor([parse_prompt(prompt) for prompt in prompts]).T
    return render(Scene(shape, colour, direction, found.numbers))


def _moments(mass: Tensor) -> tuple[Tensor, Tensor]:
    """Return midpoint (N, 2) and velocity (N, 2) of brightness (N, F, H, W), by regression of its centre on time."""
    size = mass.shape[-1]
    axis = (torch.arange(size, dtype=mass.dtype) + 0.5) / size * 2 - 1
    weight = mass.sum((2, 3)).clamp(min=1e-3)
    centre = torch.stack([(mass * axis).sum((2, 3)) / weight, (mass * axis[:, None]).sum((2, 3)) / weight], -1)
    time = torch.linspace(-1, 1, FRAMES, dtype=mass.dtype)
    velocity = (centre * time[:, None]).sum(1) / time.square().sum()
    return centre.mean(1), velocity


@dataclass
class _Search:
    """A least-squares search over many pairs of a video and a candidate scene, at the resolution of `light`."""

    shape: Tensor
    colour: Tensor
    direction: Tensor
    numbers: Tensor
    video: Tensor  # its row
    light: Tensor  # of all videos, (videos, 3, FRAMES, size, size)

    def run(self, iterations: int) -> Tensor:
        """Improve `numbers` in place, and return the squared residual of each pair."""
        palette = PALETTE.to(self.light)[self.colour]
        seen = torch.einsum("nc,ncp->np", palette, self.light.flatten(2)[self.video])
        self.numbers, squared = improve(
            self.numbers,
            self.masks,
            self.slopes,
            seen,
            self.light.flatten(1).square().sum(1)[self.video],
            palette.square().sum(1),
            (LOW.to(self.light), HIGH.to(self.light)),
            iterations,
        )
        return squared

    def masks(self, numbers: Tensor) -> Tensor:
        return coverage(self.shape, self.direction, numbers, self.light.shape[-1]).flatten(1)

    def slopes(self, numbers: Tensor, masks: Tensor) -> Tensor:
        size = self.light.shape[-1]
        return coverage(self.shape, self.direction, numbers, size, slopes=True).flatten(1, 3)

    def keep(self, rows: Tensor, light: Tensor) -> "_Search":
        """Return a search over the pairs `rows`, on `light`: the same videos at another resolution or precision."""
        numbers = self.numbers[rows].to(light)
        return _Search(self.shape[rows], self.colour[rows], self.direction[rows], numbers, self.video[rows], light)


def _likely_scenes(light: Tensor) -> _Search:
    """Return a search with 12 scenes per video: every shape × the two likeliest colours × the two likeliest ways."""
    n, mass, palette, ways = len(light), light.clamp(min=0).mean(1), PALETTE.to(light), STEPS.to(light).T
    middle, velocity = _moments(mass.square())
    tint = (light * mass[:, None]).sum((2, 3, 4))
    tint = tint / tint.amax(1, keepdim=True).clamp(min=1e-3)
    colours = (tint[:, None] - palette).norm(dim=2).topk(2, largest=False).indices
    along, directions = (velocity @ ways).topk(2)
    grid = torch.cartesian_prod(torch.arange(3), torch.arange(2), torch.arange(2))
    colour, speed = colours[:, grid[:, 1]].flatten(), along[:, grid[:, 2]].flatten()
    radius = torch.full_like(speed, LOW[3].add(HIGH[3]).item() / 2)
    numbers = torch.cat([middle.repeat_interleave(len(grid), 0), speed[:, None], radius[:, None]], 1)
    numbers = numbers.clamp(LOW.to(light), HIGH.to(light))
    video = torch.arange(n).repeat_interleave(len(grid))
    return _Search(grid[:, 0].repeat(n), colour, directions[:, grid[:, 2]].flatten(), numbers, video, light)


def fit(videos: Tensor) -> Fit:
    """Find for each video (N, 3, F, H, W) in [-1, 1] the nearest real clip, one that `render` can make.

    The distance is |video − clip| / |clip|, where black counts as 0. The radius stays within the world's range, and the
    distance is relative to the clip. So a shape cannot come closer to the manifold by shrinking.
    """
    parts = [_fit(part) for part in torch.split(videos, FIT_BATCH)]
    scenes = [torch.cat([getattr(scene, f.name) for scene, _ in parts]) for f in fields(Scene)]
    return Fit(Scene(*scenes), torch.cat([distance for _, distance in parts]))


def _fit(videos: Tensor) -> tuple[Scene, Tensor]:
    """Fit every likely scene at half the size, the three nearest at the full one, and the best in double precision."""
    light, n = ((videos + 1) / 2).float(), len(videos)  # black becomes 0
    search = _likely_scenes(F.avg_pool3d(light, (1, 2, 2)))
    rough = search.run(4).view(n, -1)
    nearest = rough.topk(3, largest=False).indices + torch.arange(n)[:, None] * rough.shape[1]
    search = search.keep(nearest.flatten(), light)
    winner = search.run(6).view(n, 3).argmin(1) + torch.arange(n) * 3
    best = search.keep(winner, light.double())
    squared = best.run(6)
    energy = PALETTE.double()[best.colour].square().sum(1) * best.masks(best.numbers).square().sum(1)
    distance = (squared.clamp(min=0) / energy).sqrt()
    return Scene(best.shape, best.colour, best.direction, best.numbers.float()), distance.float()
