"""Group-relative advantages from rewards. A failed reward is always marked by a mask, never by a special number."""

from collections.abc import Sequence

import torch
from torch import Tensor


def weighted_reward(scores: Tensor, valid: Tensor, weights: Sequence[float] | None = None) -> tuple[Tensor, Tensor]:
    r"""Return the weighted reward $R = \sum_r w_r S_r$ of each sample, and whether the sample counts (Eq. 33).

    A sample counts only if all its scores with a weight other than 0 are valid.

    Args:
        scores: Scores (…, R), with the R scores of a sample along the last axis.
        valid: Mask (…, R), boolean: which scores are valid.
        weights: One weight per score; None gives each score the weight 1.

    Returns:
        The rewards (…) in float64, and a mask (…) of the samples that count.
    """
    w = torch.ones(scores.shape[-1]) if weights is None else torch.as_tensor(weights)
    if len(w) != scores.shape[-1]:
        raise ValueError(f"{len(w)} reward weights for {scores.shape[-1]} scores: give one weight a score")
    needed = w.to(scores.device) != 0
    ok = valid | ~needed  # `Scores` has masked what is not finite
    # `where` before the product: a failed score may be NaN, and NaN·0 is NaN
    reward = (torch.where(ok & needed, scores, 0.0).double() * w.to(scores.device).double()).sum(-1)
    return reward, ok.all(-1)


def group_advantages(reward: Tensor, valid: Tensor, *, limit: float = 5.0, eps: float = 1e-4) -> tuple[Tensor, Tensor]:
    r"""Return each sample's advantage within its group, and a mask of the samples that count (Eq. 10 / 35).

    $$A_i = \mathrm{clip}\left(\frac{r_i - \mathrm{mean}(r)}{\mathrm{std}(r) + \epsilon},\ \pm\mathrm{limit}\right)$$

    Mean and standard deviation are over the valid samples of a group. Failed samples do not count, and neither do
    samples of a group with fewer than two valid ones. Their advantage is 0.

    Args:
        reward: Rewards (…, G), with the G samples of a group along the last axis.
        valid: Mask (…, G), boolean: which rewards are valid.
        limit: Advantages are clipped to ± this value.
        eps: $\epsilon$, added to the standard deviation.

    Returns:
        The advantages (…, G) in float64, and a mask (…, G) of the samples that count.
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
    r"""Return advantages that combine the separate advantages of each score, so that no score dominates by its scale.

    $$A_i = \frac{\sum_r w_r A_i^{(r)}}{\sum_r |w_r|}$$

    Here $A_i^{(r)}$ is the advantage of sample $i$ in its group by score $r$ alone. The division keeps the usual size
    of advantages. The result is clipped to ± `limit` too.

    Args:
        scores: Scores (N, R): one row per video, one column per score. The videos of a group are in adjacent rows.
        valid: Mask (N, R), boolean: which scores are valid.
        weights: One weight per score; None gives each score the weight 1.
        group: Number of videos per group, G.
        limit: Advantages are clipped to ± this value.

    Returns:
        The advantages (N/G, G) in float64, and a mask (N/G, G) of the samples that count.
    """
    w = torch.ones(scores.shape[-1]) if weights is None else torch.as_tensor(weights)
    _, ok = weighted_reward(scores, valid, weights)
    by_score = torch.where(ok[:, None] & (w != 0).to(ok.device), scores, 0.0).T.reshape(len(w), -1, group)
    each, used = group_advantages(by_score, ok.view(1, -1, group).expand_as(by_score), limit=limit)
    w = w.to(each) / w.abs().sum().clamp(min=1e-9)
    return (w.view(-1, 1, 1) * each).sum(0).clamp(-limit, limit), used[0]
