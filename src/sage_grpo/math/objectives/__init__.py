"""Objectives: the loss of one video at one point, each in a file of its own and registered under its name.

An objective says at which points the network is evaluated again, what the loss of a point is, and which references it
needs. Rollouts, advantages, masks, trust region and checks are the same for all objectives.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from sage_grpo.math.gaussian import Reduction, log_ratio
from sage_grpo.math.kernels import KernelTable


@dataclass(frozen=True)
class LossInputs:
    """The inputs of an objective for a batch of videos at one point. Tensors have one row per video."""

    velocity: Tensor
    """Velocity (B, …) of the policy that is trained, with gradient."""
    old: Tensor
    """Velocity (B, …) of the policy that made the rollout, at the same point."""
    anchor: Tensor | None
    """Velocity (B, …) of the anchor; None where it is not evaluated."""
    sigma: float
    """The noise level at this point."""
    noise: Tensor
    r"""$\varepsilon$ of the step that the rollout took from here, or $z$ of a renoised video (B, …)."""
    clean: Tensor
    """The video $x_0$ that the rollout made, as latents (B, …)."""
    advantage: Tensor
    """Advantage of each video (B,)."""
    b: float
    """Weight of the velocity in the step; 0 for a renoised video."""
    k: float
    r"""$k = b/s$, with the size $s$ of the step's noise; $\sqrt2$ for a renoised video."""
    scale: float = 1.0
    """Factor of the log-ratio: 1, or $2s^2$ if the kernel's log-likelihood is not divided by $2s^2$."""

    def log_ratio(self, reduction: Reduction) -> Tensor:
        r"""Return $\log\pi_\theta/\pi_\mathrm{old}$ of the step that the rollout took: one value per video (B,)."""
        return self.scale * log_ratio(self.velocity, self.old, self.noise, self.k, reduction)


@dataclass(frozen=True)
class Loss:
    """The result of an objective at one point: tensors with one value per video (B,)."""

    value: Tensor
    """The loss in float64, with gradient."""
    log_ratio: Tensor
    """How much more likely the policy makes the video than the old policy does, as the objective defines it: 0 where
    both agree. A gradient step on the loss raises this value if the advantage is positive, and lowers it if the
    advantage is negative."""
    clipped: Tensor
    """Mask of clipped videos, from which no gradient flows."""

    @classmethod
    def unclipped(cls, value: Tensor, log_ratio: Tensor) -> "Loss":
        """Return the loss of an objective that never clips: no video is marked as clipped."""
        return cls(value, log_ratio, torch.zeros_like(value, dtype=torch.bool))


@dataclass(frozen=True, kw_only=True)
class Objective(ABC):
    """The base class of objectives. Derive from it, implement `loss`, and add settings as fields with defaults."""

    renoised: ClassVar[bool] = False
    """Whether the objective trains on finished videos with fresh noise, at `policy.points` points each, and not on the
    stochastic steps of the rollout. The network is then evaluated without guidance."""
    paired: ClassVar[bool] = False
    """Whether the objective compares the best and the worst video of each group. They are rows 2i and 2i+1 of a batch,
    with the same noise."""
    anchored: ClassVar[bool] = False
    """Whether the objective needs the anchor's velocity at every point."""

    reduction: Reduction = "mean"
    """Reduction over the elements of a latent: their mean or their sum."""
    advantage_limit: float = 5.0
    """Advantages are clipped to ± this value."""

    @abstractmethod
    def loss(self, inputs: LossInputs) -> Loss:
        """Return the loss of every video of a batch at one point."""

    def step_weights(self, table: KernelTable) -> Tensor | None:
        """Return the objective's own weights of the steps (T,), or None to use the weights of the equalizer."""
        return None

    def old_decay(self, iteration: int) -> float | None:
        """Return the share (0 to 1) of its own weights that the old policy keeps after an iteration.

        The remaining share comes from the trained policy, so that the old policy is an average. None means that the
        trained policy itself makes the rollouts, and is its own old policy.
        """
        return None

    @property
    def averages(self) -> bool:
        """Whether an average of the trained policy makes the rollouts."""
        return self.old_decay(0) is not None

    @classmethod
    def settings(cls) -> dict[str, Any]:
        """Return the objective's settings that a recipe may give, by name, with their defaults."""
        shared = {field.name for field in fields(Objective)}
        return {field.name: field.default for field in fields(cls) if field.name not in shared}


def above_zero(**settings: float) -> None:
    """Refuse settings that are not above 0."""
    for name, value in settings.items():
        if not value > 0:
            raise ValueError(f"{name} is {value:g}; it must be above 0")


C = TypeVar("C", bound=type[Objective])
OBJECTIVES: dict[str, type[Objective]] = {}


def objective(name: str) -> Callable[[C], C]:
    """Register a class of objectives under its name in recipes: put `@objective("mine")` above it.

    Examples:
        >>> from dataclasses import dataclass, replace
        >>> from sage_grpo import objective
        >>> from sage_grpo.math.objectives.grpo import Grpo
        >>> @objective("doubled")
        ... @dataclass(frozen=True, kw_only=True)
        ... class Doubled(Grpo):  # the loss of GRPO with twice the advantage
        ...     def loss(self, inputs):
        ...         return super().loss(replace(inputs, advantage=2 * inputs.advantage))
    """

    def register(cls: C) -> C:
        known = OBJECTIVES.get(name)
        if known and known.__module__ != cls.__module__:
            raise ValueError(f"objective {name!r} is already registered, by {known.__module__}")
        OBJECTIVES[name] = cls
        return cls

    return register


def make_objective(name: str, settings: Mapping[str, Any], **shared: Any) -> Objective:
    return OBJECTIVES[name](**shared, **settings)


for _found in iter_modules(__path__):  # each registers itself
    import_module(f"{__name__}.{_found.name}")
