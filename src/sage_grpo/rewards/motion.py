"""Motion, measured without a trained network: does something move, evenly, in one shot, in steady light?

The scores are gamed in different ways: `dynamic` by shaking and by noise of a moderate speed; `acceleration`, `cut` and
`flicker` by a static video, and a little by blur. `cut` is also gamed by a crossfade. So never use one alone. The
option `combined` gives one score, which rewards evenness only as far as something moves.
"""

from typing import Self

import torch
from torch import Tensor
from torch.nn import functional as F

from sage_grpo.config import ConfigError
from sage_grpo.core.protocols import Prompt
from sage_grpo.registry import reward
from sage_grpo.rewards.frames import Unscorable, VideoScorer, shrunk

LUMINANCE = (0.299, 0.587, 0.114)
SIDE = 96  # pixels of the shorter side on which motion is measured
SMALLEST = 8  # of the coarsest level, and of a video that can be measured at all
ROUNDS, WINDOW = 3, 9
DOUBT = 4.0  # grey levels² of gradient below which a place has no motion of its own to measure
MOVING = 0.05  # share of the pixels that stand for what moves
GRID = 8
CLEAR_CUT = 0.15  # mean jump of the thumbnails, of the whole range, that is certainly another shot


def moved(picture: Tensor, flow: Tensor) -> Tensor:
    """Return pictures (N, C, h, w) whose value at each pixel x is that of `picture` at x + flow(x).

    Flows are (N, 2, h, w) in pixels, the horizontal part first.
    """
    height, width = picture.shape[2:]
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    position = torch.stack([x, y]).to(flow) + flow
    grid = torch.stack([(2 * position[:, 0] + 1) / width - 1, (2 * position[:, 1] + 1) / height - 1], -1)
    return F.grid_sample(picture, grid, padding_mode="border", align_corners=False)


def optical_flow(first: Tensor, second: Tensor) -> Tensor:
    """Return how far each pixel of the grey pictures `first` has moved in `second`, as (N, 2, h, w) in pixels.

    Both are (N, 1, h, w). The method is Lucas-Kanade on a pyramid.
    """
    levels = [(first, second)]
    while min(levels[0][0].shape[2:]) >= 2 * SMALLEST:
        levels.insert(0, (F.avg_pool2d(levels[0][0], 2), F.avg_pool2d(levels[0][1], 2)))
    flow = first.new_zeros(len(first), 2, *levels[0][0].shape[2:])
    for a, b in levels:
        ratio = flow.new_tensor([a.shape[3] / flow.shape[3], a.shape[2] / flow.shape[2]])[:, None, None]
        flow = F.interpolate(flow, a.shape[2:], mode="bilinear", align_corners=False) * ratio
        for _ in range(ROUNDS):
            flow = _improved(flow, a, moved(b, flow))
    return flow


def _improved(flow: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Return the flow plus the shift between the windows of `a` and `b`, by least squares: a step of Lucas-Kanade.

    Places without texture take the flow of the places around them.
    """
    middle = F.pad((a + b) / 2, (1, 1, 1, 1), mode="replicate")
    dx, dy = (middle[..., 1:-1, 2:] - middle[..., 1:-1, :-2]) / 2, (middle[..., 2:, 1:-1] - middle[..., :-2, 1:-1]) / 2
    late = b - a
    xx, xy, yy, xt, yt = _around(torch.cat([dx * dx, dx * dy, dy * dy, dx * late, dy * late], 1)).unbind(1)
    xx, yy = xx + DOUBT, yy + DOUBT
    whole = xx * yy - xy * xy
    shift = torch.stack([xy * yt - yy * xt, xy * xt - xx * yt], 1) / whole[:, None]
    texture = (whole / (xx + yy))[:, None]  # near the smaller eigenvalue: a straight edge tells one direction only
    return _around((flow + shift.clamp(-1, 1)) * texture) / _around(texture)


def _around(x: Tensor) -> Tensor:
    """Return for each pixel the mean of the window around it, computed in two passes."""
    half = WINDOW // 2
    rows = F.avg_pool2d(x, (1, WINDOW), 1, (0, half), count_include_pad=False)
    return F.avg_pool2d(rows, (WINDOW, 1), 1, (half, 0), count_include_pad=False)


def most(lengths: Tensor) -> Tensor:
    """Return for each frame of `lengths` (N, h, w) the mean of its largest values, a share `MOVING` of all, as (N,).

    The rest is left out, because a small thing that moves must count too.
    """
    flat = lengths.flatten(1)
    return flat.topk(max(1, round(MOVING * flat.shape[1])), 1).values.mean(1)


def shot_cut(thumbnails: Tensor) -> float:
    """Return how certain a cut is, from 0 to 1, in a video of thumbnails (F, 3, g, g) in [0, 1].

    The measure is how far the change from one frame to the next exceeds twice the changes before and after. The largest
    excess counts. In fast motion all changes are alike, and the result is 0.
    """
    jumps = thumbnails.diff(dim=0).abs().mean((1, 2, 3))
    around = torch.stack([F.pad(jumps, (1, 0))[:-1], F.pad(jumps, (0, 1))[1:]]).amax(0)
    return float(((jumps - 2 * around).amax() / CLEAR_CUT).clamp(0, 1))


@reward("motion")
class MotionReward(VideoScorer):
    """The scores `dynamic`, from 0 to 1, and `acceleration`, `cut` and `flicker`, which are 0 or below; 0 is best.

    Args:
        low: Speed at which `dynamic` has risen to 1, in shorter sides of the frame per frame.
        high: Speed above which `dynamic` falls again, to 0 at twice that speed.
        combined: Whether to give one score, `motion`, in place of the four.
    """

    names: tuple[str, ...] = ("dynamic", "acceleration", "cut", "flicker")

    def __init__(self, *, low: float = 0.01, high: float = 0.1, combined: bool = False) -> None:
        if not 0 < low < high:
            raise ConfigError(f"motion: low={low}, high={high}: the band needs 0 < low < high")
        self.low, self.high, self.combined = low, high, combined
        if combined:
            self.names = ("motion",)

    def score_video(self, frames: Tensor, prompt: Prompt) -> list[float]:
        if len(frames) < 3 or min(frames.shape[1:3]) < SMALLEST:
            raise Unscorable(f"motion needs three frames of {SMALLEST} pixels a side")
        pictures = shrunk(frames, SIDE)
        light = (pictures * pictures.new_tensor(LUMINANCE)[:, None, None]).sum(1, keepdim=True)
        flow, side = optical_flow(light[:-1], light[1:]), min(light.shape[2:])
        speed = float(most(flow.norm(dim=1)).mean()) / side
        change = float((moved(flow[1:], flow[:-1]) - flow[:-1]).norm(dim=1).mean()) / side
        thumbnails = F.adaptive_avg_pool2d(pictures / 255, GRID)
        brightness = F.adaptive_avg_pool2d(light / 255, 2)  # so coarse that what moves weighs little
        flicker = -float((brightness[:-2] - 2 * brightness[1:-1] + brightness[2:]).abs().mean() / 2)
        dynamic = max(0.0, min(1.0, speed / self.low, 2 - speed / self.high))
        acceleration, cut = -100 * change, -shot_cut(thumbnails)
        if self.combined:
            return [dynamic / (1 - acceleration) + cut + 10 * flicker]
        return [dynamic, acceleration, cut, flicker]

    @classmethod
    def tiny(cls) -> Self:
        return cls()
