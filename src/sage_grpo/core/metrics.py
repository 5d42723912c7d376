"""The metrics of an iteration, computed from its rewards, advantages and updates."""

from collections.abc import Sequence

from torch import Tensor

from sage_grpo.core.callback import Metrics
from sage_grpo.core.selection import has_signal
from sage_grpo.core.update import UpdateResult

MEANS = {  # metric: the column of an update's result that it is the mean of
    "ratio_mean": "ratio",
    "clip_frac": "clip_frac",
    "kl/penalty": "kl_penalty",
    "kl/anchor": "kl_anchor",
    "kl/old": "kl_old",
    "loss": "loss",
}


def iteration_metrics(
    reward: Tensor, valid: Tensor, advantage: Tensor, used: Tensor, results: Sequence[UpdateResult]
) -> Metrics:
    """Return the metrics of an iteration by name.

    Args:
        reward: Weighted reward (P, G) of each video: one row per prompt, one column per video.
        valid: Mask (P, G), boolean: the videos whose reward did not fail.
        advantage: Advantages (P, G).
        used: Mask (P, G), boolean: the videos whose advantage counts.
        results: The iteration's updates; empty if no video was left to train on.
    """
    flat = used.any(1) & ~has_signal(advantage)
    metrics = {
        "zero_std_ratio": flat.double().mean().item(),
        "skipped_iterations": float(not results),
        "skipped_updates": float(sum(not result.stepped for result in results)),
        "reward/failed": (~valid).double().mean().item(),
    }
    scored = reward[valid]
    if len(scored):
        metrics |= {"reward/mean": scored.mean().item(), "reward/std": scored.std(correction=0).item()}
    if results:
        metrics |= {name: sum(r.mean(column) for r in results) / len(results) for name, column in MEANS.items()}
        changes = [r.outside for r in results if r.outside is not None]
        metrics |= {"kl/outside": sum(changes) / len(changes)} if changes else {}
        metrics["grad_norm"] = sum(r.grad_norm for r in results) / len(results)
    return metrics
