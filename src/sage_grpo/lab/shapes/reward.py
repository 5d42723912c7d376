"""The rewards of the world of shapes: formulas for visual quality (VQ), motion quality (MQ) and text alignment (TA).

No reward measures the distance to the nearest clip that the world can render, because that is a held-out measure. No
reward depends on the size of the shape, or a policy would learn to shrink it. Scores are standardized: over videos of
the base model, each has mean 0 and standard deviation 1.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from sage_grpo.core.protocols import Prompt
from sage_grpo.core.reward import Reward
from sage_grpo.core.scores import Scores
from sage_grpo.lab.shapes.world import FRAMES, PALETTE, SIZE, STEPS, coverage, parse_prompt
from sage_grpo.registry import reward

NAMES = ("VQ", "MQ", "TA")
# mean and standard deviation of the raw scores over 960 samples of the shipped base model
BASE = {"VQ": (-1.421, 0.411), "MQ": (-0.676, 0.705), "TA": (-3.799, 2.534)}

# log-probabilities that count: what is surely wrong is not worse than this, and what is rather right than not is not
# better. Without the upper end groups in which all is right compete for large shapes in the middle of the picture.
WORTH = (-6.0, -0.69)


def _centres(mass: Tensor) -> Tensor:
    """Return the centre (x, y) of the brightness `mass` (N, F, H, W) in each frame, (N, F, 2), in [-1, 1]."""
    axis = (torch.arange(SIZE, dtype=mass.dtype) + 0.5) / SIZE * 2 - 1
    weight = mass.sum((2, 3)).clamp(min=1e-3)
    return torch.stack([(mass * axis).sum((2, 3)) / weight, (mass * axis[:, None]).sum((2, 3)) / weight], -1)


def visual_quality(light: Tensor) -> Tensor:
    """Return the visual quality (N,) of videos, given as RGB brightness `light` (N, F, H, W, 3) in [0, 1].

    Each pixel has a squared distance to the nearest of black and the colours of the palette. The quality is minus the
    sum of these distances per frame, divided by the edge length of the shape.
    """
    colours = torch.cat([torch.zeros(1, 3), PALETTE]).to(light)
    away = torch.cdist(light.flatten(1, 3), colours[None].expand(len(light), -1, -1)).amin(2).square().sum(1)
    area = light.amax(4).sum((1, 2, 3)) / FRAMES  # pixels lit; an edge grows with its root
    return -away / FRAMES / area.clamp(min=1).sqrt()


def motion_quality(light: Tensor) -> Tensor:
    """Return the motion quality (N,) of videos, given as RGB brightness `light` (N, F, H, W, 3) in [0, 1].

    It is −(10·jerk + 3·flicker). Jerk is the root-mean-square second difference of the shape's centre over frames.
    Flicker is the standard deviation of the total brightness over frames, relative to its mean.
    """
    mass = light.amax(4)
    centre, amount = _centres(mass.square()), mass.sum((2, 3))
    jerk = centre.diff(n=2, dim=1).square().sum(2).mean(1).sqrt()
    flicker = amount.std(1, correction=0) / amount.mean(1).clamp(min=1)
    return -(10 * jerk + 3 * flicker)


def text_alignment(light: Tensor, prompts: Sequence[Prompt]) -> Tensor:
    """Return the log-probability (N,) that shape, colour and direction of each video are those of its prompt.

    It is the sum of three log-probabilities, each clamped to `WORTH`: beyond these bounds the video is surely wrong, or
    right enough. `light` is RGB brightness (N, F, H, W, 3) in [0, 1].
    """
    shape, colour, direction = torch.tensor([parse_prompt(p.text) for p in prompts]).T
    mass = light.amax(4)
    tint = (light * mass[..., None].square()).sum((1, 2, 3))
    tint = tint / tint.amax(1, keepdim=True).clamp(min=1e-3)
    by_colour = -torch.cdist(tint, PALETTE.to(tint)).square() / 0.05
    time = torch.linspace(-1, 1, FRAMES)
    centre = _centres(mass.square())
    velocity = (centre * time[:, None]).sum(1) / time.square().sum()
    by_direction = velocity @ STEPS.T / 0.05
    by_shape = -4 * _template_distances(mass, centre)
    logs = [
        by.log_softmax(1).gather(1, index[:, None])[:, 0].clamp(*WORTH)
        for by, index in ((by_shape, shape), (by_colour, colour), (by_direction, direction))
    ]
    return torch.stack(logs).sum(0)


def _template_distances(mass: Tensor, centre: Tensor) -> Tensor:
    """Return the squared difference (N, 3) of each video's mean centred mask from the three shapes of equal area.

    The unit is the squared difference of a circle and a square of this area. Otherwise large shapes would be easier to
    distinguish than small ones.
    """
    shift = torch.zeros(len(mass), FRAMES, 2, 3)
    shift[:, :, 0, 0] = shift[:, :, 1, 1] = 1
    shift[:, :, :, 2] = centre
    grid = F.affine_grid(shift.flatten(0, 1), [len(mass) * FRAMES, 1, SIZE, SIZE], align_corners=False)
    looks = F.grid_sample(mass.flatten(0, 1)[:, None], grid, align_corners=False).view(-1, FRAMES, SIZE, SIZE).mean(1)
    looks = looks / looks.flatten(1).amax(1).clamp(min=1e-3)[:, None, None]
    radius = (looks.sum((1, 2)) * (2 / SIZE) ** 2 / torch.pi).sqrt().clamp(0.1, 0.8)
    n, still = len(mass), torch.zeros(3 * len(mass), dtype=torch.long)
    numbers = torch.zeros(n, 3, 4)
    numbers[..., 3] = radius[:, None]
    templates = coverage(torch.arange(3).repeat(n), still, numbers.flatten(0, 1), frames=1)[:, 0]
    # a template's light is centred like the video's: a triangle's is not at its middle
    middle = _centres(templates[:, None].square())[:, 0].view(n, 3, 2)
    numbers[..., :2] = -middle
    templates = coverage(torch.arange(3).repeat(n), still, numbers.flatten(0, 1), frames=1)[:, 0].view(n, 3, SIZE, SIZE)
    apart = (templates[:, 0] - templates[:, 1]).square().sum((1, 2)).clamp(min=1e-3)
    return (templates - looks[:, None]).square().sum((2, 3)) / apart[:, None]


@reward("shapes")
class ShapesReward(Reward):
    """The reward of the world of shapes: visual quality (VQ), motion quality (MQ) and text alignment (TA) per video."""

    names = NAMES
    laboratory = True  # other clips have no such scores
    base: Mapping[str, tuple[float, float]] = BASE

    def score(self, videos: Tensor, prompts: Sequence[Prompt]) -> Scores:
        light = videos.float().cpu() / 255
        raw = visual_quality(light), motion_quality(light), text_alignment(light, prompts)
        scores = [(value - self.base[name][0]) / self.base[name][1] for name, value in zip(NAMES, raw, strict=True)]
        return Scores.of(torch.stack(scores, 1))
