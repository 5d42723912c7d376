"""One coloured shape moving across a black clip: three shapes × four colours × four directions, 48 prompts.

A clip is a smooth function of four numbers (midpoint, speed, radius) for each prompt, so the data manifold is
known exactly and the distance of any video to it is a small least-squares fit.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from sage_grpo.lab.fitting import improve

FRAMES, SIZE = 8, 16
SHAPES = ("circle", "square", "triangle")
COLOURS = ("red", "green", "blue", "yellow")
DIRECTIONS = ("left", "right", "up", "down")
PALETTE = torch.tensor([[1.0, 0.15, 0.15], [0.15, 0.9, 0.2], [0.2, 0.35, 1.0], [1.0, 0.85, 0.1]])
STEPS = torch.tensor([[-1.0, 0.0], [1.0, 0.0], [0.0, -1.0], [0.0, 1.0]])  # x to the right, y downwards
LOW = torch.tensor([-0.25, -0.25, 0.22, 0.32])  # midpoint x and y, speed, radius
HIGH = torch.tensor([0.25, 0.25, 0.42, 0.46])
SOFTNESS = 0.035  # of an edge; a pixel is 0.125 wide


@dataclass(frozen=True)
class Scene:
    """What is shown: indices of shape, colour and direction, and the four continuous numbers, one row a clip."""

    shape: Tensor
    colour: Tensor
    direction: Tensor
    numbers: Tensor

    @property
    def prompts(self) -> list[str]:
        rows = zip(self.colour.tolist(), self.shape.tolist(), self.direction.tolist(), strict=True)
        return [f"a {COLOURS[c]} {SHAPES[s]} moving {DIRECTIONS[d]}" for c, s, d in rows]


def all_prompts() -> list[str]:
    return [f"a {c} {s} moving {d}" for s in SHAPES for c in COLOURS for d in DIRECTIONS]


def parse_prompt(text: str) -> tuple[int, int, int]:
    """Indices of shape, colour and direction that a prompt asks for."""
    words = text.lower().split()

    def find(names: tuple[str, ...]) -> int:
        for index, name in enumerate(names):
            if name in words:
                return index
        raise ValueError(f"prompt {text!r} names none of {', '.join(names)}")

    return find(SHAPES), find(COLOURS), find(DIRECTIONS)


def random_scene(count: int, generator: torch.Generator) -> Scene:
    def pick(names: tuple[str, ...]) -> Tensor:
        return torch.randint(len(names), (count,), generator=generator)

    numbers = LOW + (HIGH - LOW) * torch.rand(count, 4, generator=generator)
    return Scene(pick(SHAPES), pick(COLOURS), pick(DIRECTIONS), numbers)


def _signed_distance(shape: int, x: Tensor, y: Tensor, radius: Tensor) -> Tensor:
    """Negative inside. All three shapes of one radius have the area of the circle."""
    if SHAPES[shape] == "circle":
        return (x.square() + y.square() + 1e-12).sqrt() - radius
    if SHAPES[shape] == "square":
        return torch.maximum(x.abs(), y.abs()) - 0.8862 * radius
    # three half-planes at half the circumradius of the triangle of equal area
    sides = torch.maximum(0.866 * x - 0.5 * y, -0.866 * x - 0.5 * y)
    return torch.maximum(sides, y) - 0.7777 * radius


def render_masks(shape: Tensor, direction: Tensor, numbers: Tensor) -> Tensor:
    """Coverage in [0, 1], (N, FRAMES, SIZE, SIZE), smooth in `numbers`."""
    axis = (torch.arange(SIZE, dtype=numbers.dtype) + 0.5) / SIZE * 2 - 1
    time = torch.linspace(-1, 1, FRAMES, dtype=numbers.dtype)
    centre = numbers[:, None, :2] + STEPS.to(numbers)[direction][:, None] * numbers[:, None, 2:3] * time[:, None]
    x = axis[None, None, None, :] - centre[..., 0, None, None]
    y = axis[None, None, :, None] - centre[..., 1, None, None]
    radius = numbers[:, 3, None, None, None]
    distance = x.new_empty(len(numbers), FRAMES, SIZE, SIZE)
    for index in range(len(SHAPES)):
        rows = shape == index
        distance[rows] = _signed_distance(index, x[rows], y[rows], radius[rows])
    return torch.sigmoid(-distance / SOFTNESS)


def render(scene: Scene) -> Tensor:
    """Clips in [-1, 1], (N, 3, FRAMES, SIZE, SIZE)."""
    masks = render_masks(scene.shape, scene.direction, scene.numbers)
    return 2 * masks[:, None] * PALETTE.to(masks)[scene.colour][:, :, None, None, None] - 1


@dataclass(frozen=True)
class Fit:
    """The nearest clip of the world to each video, and how far it is."""

    scene: Scene
    distance: Tensor


def _moments(mass: Tensor) -> tuple[Tensor, Tensor]:
    """Midpoint (N, 2) and velocity (N, 2) of the brightness, by regression of its centre on time."""
    axis = (torch.arange(SIZE, dtype=mass.dtype) + 0.5) / SIZE * 2 - 1
    weight = mass.sum((2, 3)).clamp(min=1e-3)
    centre = torch.stack([(mass * axis).sum((2, 3)) / weight, (mass * axis[:, None]).sum((2, 3)) / weight], -1)
    time = torch.linspace(-1, 1, FRAMES, dtype=mass.dtype)
    velocity = (centre * time[:, None]).sum(1) / time.square().sum()
    return centre.mean(1), velocity


@dataclass
class _Search:
    """Many pairs of video and scene."""

    shape: Tensor
    colour: Tensor
    direction: Tensor
    numbers: Tensor
    seen: Tensor  # the video's light along the scene's colour, per pixel
    total: Tensor  # squared norm of the video

    @property
    def strength(self) -> Tensor:
        return PALETTE.double()[self.colour].square().sum(1)

    def masks(self, numbers: Tensor) -> Tensor:
        return render_masks(self.shape, self.direction, numbers).flatten(1)

    def run(self, iterations: int) -> Tensor:
        """Improve `numbers` in place and return the squared residuals."""
        bounds = (LOW.double(), HIGH.double())
        self.numbers, squared = improve(
            self.numbers, self.masks, self.seen, self.total, self.strength, bounds, iterations
        )
        return squared

    def keep(self, rows: Tensor) -> "_Search":
        return _Search(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))


def _likely_scenes(light: Tensor) -> _Search:
    """For each video every shape × the two likeliest colours × the two likeliest directions."""
    n, mass, palette, ways = len(light), light.clamp(min=0).mean(1), PALETTE.double(), STEPS.double().T
    middle, velocity = _moments(mass.square())
    tint = (light * mass[:, None]).sum((2, 3, 4))
    tint = tint / tint.amax(1, keepdim=True).clamp(min=1e-3)
    colours = (tint[:, None] - palette).norm(dim=2).topk(2, largest=False).indices
    along, directions = (velocity @ ways).topk(2)
    grid = torch.cartesian_prod(torch.arange(3), torch.arange(2), torch.arange(2))
    colour, speed = colours[:, grid[:, 1]].flatten(), along[:, grid[:, 2]].flatten()
    radius = torch.full_like(speed, 0.39)
    numbers = torch.cat([middle.repeat_interleave(len(grid), 0), speed[:, None], radius[:, None]], 1)
    projected = torch.einsum("nkc,ncfhw->nkfhw", palette[colour].view(n, len(grid), 3), light)
    total = light.flatten(1).square().sum(1).repeat_interleave(len(grid))
    direction = directions[:, grid[:, 2]].flatten()
    numbers = numbers.clamp(LOW.double(), HIGH.double())
    return _Search(grid[:, 0].repeat(n), colour, direction, numbers, projected.flatten(0, 1).flatten(1), total)


def fit(videos: Tensor) -> Fit:
    """The nearest clip of the world; distance = |residual| / |nearest clip|.

    The radius is held to the world's range and the residual is measured against the fitted clip, so that a
    shape cannot come nearer to the manifold by shrinking.
    """
    search = _likely_scenes(((videos + 1) / 2).double())  # black becomes 0
    rough, n = search.run(4), len(videos)
    count = len(rough) // n
    nearest = rough.view(n, count).topk(3, largest=False).indices + torch.arange(n)[:, None] * count
    search = search.keep(nearest.flatten())
    squared = search.run(12)
    winner = squared.view(n, 3).argmin(1) + torch.arange(n) * 3
    best = search.keep(winner)
    energy = best.strength * best.masks(best.numbers).square().sum(1)
    distance = (squared[winner].clamp(min=0) / energy).sqrt()
    return Fit(Scene(best.shape, best.colour, best.direction, best.numbers.float()), distance.float())
