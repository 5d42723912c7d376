"""Rewards to group-relative advantages. A failed reward is a mask, never a number."""

from collections.abc import Sequence

import torch
from torch import Tensor


def weighted_reward(scores: Tensor, valid: Tensor, weights: Sequence[float] | None = None) -> tuple[Tensor, Tensor]:
    r"""Eq. 33: $R = \sum_r w_r S_r$ over the last axis. A sample counts only if every weighted score does."""
    w = torch.ones(scores.shape[-1]) if weights is None else torch.as_tensor(weights)
    if len(w) != scores.shape[-1]:
        raise ValueError(f"{len(w)} reward weights for {scores.shape[-1]} scores: give one weight a score")
    needed = w.to(scores.device) != 0
    ok = valid | ~needed  # `Scores` has masked what is not finite
    # `where` before the product: a failed score may be NaN, and NaN·0 is NaN
    reward = (torch.where(ok & needed, scores, 0.0).double() * w.to(scores.device).double()).sum(-1)
    return reward, ok.all(-1)


def group_advantages(reward: Tensor, valid: Tensor, *, limit: float = 5.0, eps: float = 1e-4) -> tuple[Tensor, Tensor]:
    r"""Eq. 10 / 35 over the last axis, the group, with mean and standard deviation of the valid samples.

    $$A_i = \mathrm{clip}\left(\frac{r_i - \mathrm{mean}(r)}{\mathrm{std}(r) + \epsilon},\ \pm\mathrm{limit}\right)$$

    Returns the advantages and which samples count: failed ones, and groups left with fewer than two,
    do not.
    """
    used = valid & (valid.sum(-1, keepdim=True) >= 2)
    r = torch.where(used, reward, 0.0).double()
    count = used.sum(-1, keepdim=True).clamp(min=1)
    mean = r.sum(-1, keepdim=True) / count
    centred = torch.where(used, r - mean, 0.0)
    std = (centred.square().sum(-1, keepdim=True) / count).sqrt()
    # equal rewards may differ from their mean by rounding; ε keeps that from looking like a signal
    return (centred / (std + eps)).clamp(-limit, limit), used


def dimension_advantages(
    scores: Tensor, valid: Tensor, weights: Sequence[float] | None, group: int, *, limit: float = 5.0
) -> tuple[Tensor, Tensor]:
    r"""Each score made an advantage of its own, then weighted and summed: none drowns another by its scale.

    $$A_i = \frac{\sum_r w_r A_i^{(r)}}{\sum_r |w_r|}$$

    The division keeps the size of advantages; the sum is clipped as they are. From (N, R) to (N/group, group).
    """
    w = torch.ones(scores.shape[-1]) if weights is None else torch.as_tensor(weights)
    _, ok = weighted_reward(scores, valid, weights)
    by_score = torch.where(ok[:, None] & (w != 0).to(ok.device), scores, 0.0).T.reshape(len(w), -1, group)
    each, used = group_advantages(by_score, ok.view(1, -1, group).expand_as(by_score), limit=limit)
    w = w.to(each) / w.abs().sum().clamp(min=1e-9)
    return (w.view(-1, 1, 1) * each).sum(0).clamp(-limit, limit), used[0]
