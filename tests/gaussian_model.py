"""A model with a known answer: Gaussian "videos" near a subspace, their exact velocity, and a small network.

Of the latent coordinates half are free (std 1) and half are pinned near 0 (std `thin`): the free ones span
the data manifold, the pinned ones measure how far a sample has left it. The network adds a correction to
the exact velocity and starts at zero, so the initial policy generates the data exactly.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sage_grpo.core.protocols import Condition, Prompt
from sage_grpo.core.rollout import keyed_noise
from sage_grpo.core.video_model import VideoModel

RANGE = 4.0  # latents in [-RANGE, RANGE] fill the 256 grey levels of a frame


class Correction(nn.Module):
    def __init__(self, dim: int, width: int, dropout: float) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(2 * dim + 2, width),
            nn.SiLU(),
            nn.Dropout(dropout),
            nn.Linear(width, width),
            nn.SiLU(),
            nn.Linear(width, dim),
        )
        last = self.body[-1]
        assert isinstance(last, nn.Linear)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)

    def forward(self, x: Tensor, mean: Tensor, sigma: Tensor) -> Tensor:
        noise_level = torch.stack([sigma, sigma.square()], dim=1)
        out: Tensor = self.body(torch.cat([x, mean, noise_level.to(x.dtype)], dim=1))
        return out


class GaussianModel(VideoModel):
    """A model whose data is a known Gaussian near a plane: for tests and first steps, in no time at all."""

    def __init__(
        self,
        shape: tuple[int, ...] = (1, 4, 2, 2),
        *,
        thin: float = 0.05,
        width: int = 64,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        dropout: float = 0.0,
    ) -> None:
        self.shape, self.thin, self.dtype = shape, thin, dtype
        self.dim = torch.Size(shape).numel()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.module: nn.Module = Correction(self.dim, width, dropout).to(dtype)
        self.free = torch.arange(self.dim) < self.dim // 2
        self.std = torch.where(self.free, 1.0, thin)

    @property
    def shard_blocks(self) -> Sequence[nn.Module]:
        return [self.module]

    def latent_shape(self, prompt: Prompt) -> tuple[int, ...]:
        return self.shape

    def encode(self, prompts: Sequence[Prompt]) -> Condition:
        """Each text has a mean of its own, on the manifold."""
        draws = keyed_noise((self.dim,), [("prompt", prompt.text) for prompt in prompts], self.std.device)
        return {"mean": torch.where(self.free, 0.5 * draws, 0.0)}

    def exact_velocity(self, x: Tensor, sigma: Tensor, mean: Tensor) -> Tensor:
        """E[z - x0 | x] for x0 ~ N(mean, std²): linear in x."""
        s, var = sigma[:, None], self.std.square()
        slope: Tensor = (s - (1 - s) * var) / ((1 - s).square() * var + s.square())
        return slope * (x - (1 - s) * mean) - mean

    def velocity(self, x: Tensor, sigma: Tensor, condition: Condition) -> Tensor:
        flat, mean = x.flatten(1), condition["mean"]
        exact = self.exact_velocity(flat, sigma, mean).to(self.dtype)
        correction: Tensor = self.module(flat.to(self.dtype), mean.to(self.dtype), sigma)
        return (exact + correction).view_as(x)

    def decode(self, x0: Tensor) -> Tensor:
        grey = ((x0 / RANGE + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)
        return grey.movedim(1, -1).expand(*grey.shape[:1], *grey.shape[2:], 3)

    def off_manifold(self, x0: Tensor) -> Tensor:
        """Distance from the subspace per pinned coordinate, in units of the data's own spread: 1 for data."""
        return x0.flatten(1)[:, ~self.free].square().mean(1).sqrt() / self.thin

    def save_pretrained(self, directory: str) -> None:
        raise NotImplementedError("the Gaussian model is made by its arguments; there is nothing to save")
