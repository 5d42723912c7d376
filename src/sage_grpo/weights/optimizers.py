"""Optimizers: AdamW, or Muon for the matrices inside the blocks with AdamW for the rest."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from sage_grpo.config import OptimizerConfig


class JointOptimizer:
    """Several optimizers, each with parameters of its own, used as if they were one."""

    def __init__(self, parts: Sequence[torch.optim.Optimizer]) -> None:
        self.parts = list(parts)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return [group for part in self.parts for group in part.param_groups]

    def step(self, closure: Callable[[], float] | None = None) -> None:
        for part in self.parts:
            part.step(closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        for part in self.parts:
            part.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        return {type(part).__name__: part.state_dict() for part in self.parts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for part in self.parts:
            part.load_state_dict(dict(state[type(part).__name__]))


def build_optimizer(module: nn.Module, config: OptimizerConfig) -> torch.optim.Optimizer:
    trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
    if config.type == "adamw":
        return _adamw(list(trained.values()), config)
    # Muon is made for matrices inside the network; embeddings, first and last layers stay with AdamW
    inner = {name for name, p in trained.items() if p.dim() == 2 and "block" in name and "embed" not in name}
    parts: list[torch.optim.Optimizer] = []
    if inner:
        # its steps are scaled to the size of AdamW's, so that one learning rate serves both
        parts.append(
            torch.optim.Muon(
                [trained[name] for name in trained if name in inner],
                lr=config.lr,
                weight_decay=config.weight_decay,
                adjust_lr_fn="match_rms_adamw",
            )
        )
    if rest := [p for name, p in trained.items() if name not in inner]:
        parts.append(_adamw(rest, config))
    return JointOptimizer(parts)  # type: ignore[return-value]


def _adamw(parameters: Sequence[nn.Parameter], config: OptimizerConfig) -> torch.optim.AdamW:
    return torch.optim.AdamW(parameters, lr=config.lr, betas=config.betas, weight_decay=config.weight_decay)
