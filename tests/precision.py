"""How far the usual log-prob difference drifts from the truth in bf16, beside the velocity form."""

from dataclasses import dataclass

import torch
from torch import Tensor

from sage_grpo.math.gaussian import log_ratio
from sage_grpo.math.kernels import kernel_table
from sage_grpo.math.schedule import sigma_schedule


@dataclass(frozen=True)
class Drift:
    sigma: list[float]
    usual_unchanged: list[float]  # |log-ratio| with equal weights; the truth is 0
    ours_unchanged: list[float]
    usual_error: list[float]  # |log-ratio - truth| after a change of the policy
    ours_error: list[float]


def _log_prob(following: Tensor, mean: Tensor, s: float) -> Tensor:
    """What the research scripts do: a Gaussian log-density, averaged over elements."""
    return (-((following - mean) ** 2) / (2 * s**2)).mean(dtype=torch.float32)


def drift_at_large_size(elements: int, change: float = 1e-2, dtype: torch.dtype = torch.bfloat16) -> Drift:
    """States, velocities and means in `dtype`; the rollout's density is taken before the state is stored."""
    generator = torch.Generator().manual_seed(0)
    table = kernel_table("sage", sigma_schedule(20, 5.0), 0.7)
    rows = []
    for i in range(len(table)):
        a, b, s, k = (column[i].item() for column in (table.a, table.b, table.s, table.k))
        x, v_old, noise, direction = torch.randn(4, 1, elements, generator=generator)
        x_low, v_low = x.to(dtype), v_old.to(dtype)
        v_new = (v_low + change * direction).to(dtype)
        mean_old = a * x_low + b * v_low
        following = (mean_old.float() + s * noise).to(dtype)  # stored, hence rounded
        at_rollout = _log_prob(mean_old.float() + s * noise, mean_old.float(), s)
        at_replay = _log_prob(following.float(), mean_old.float(), s)
        changed = _log_prob(following.float(), (a * x_low + b * v_new).float(), s)
        truth = log_ratio(v_new.double(), v_low.double(), noise.double(), k).item()
        ours = log_ratio(v_new, v_low, noise, k).item()
        rows.append(
            (
                table.sigma[i].item(),
                abs((at_replay - at_rollout).item()),
                log_ratio(v_low, v_low, noise, k).abs().item(),
                abs((changed - at_rollout).item() - truth),
                abs(ours - truth),
            )
        )
    return Drift(*(list(column) for column in zip(*rows, strict=True)))
