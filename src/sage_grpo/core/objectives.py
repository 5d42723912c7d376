"""Builds the objective that a recipe names, and refuses settings that do not fit it."""

import torch
from torch import Tensor

from sage_grpo.config import AlgorithmConfig, ConfigError
from sage_grpo.math.equalizer import equalizer
from sage_grpo.math.kernels import KernelTable
from sage_grpo.math.objectives import OBJECTIVES, Objective, make_objective
from sage_grpo.suggest import did_you_mean

OLD = "old"  # in a bank: the policy that makes the rollouts, where it is an average of the trained one


def chosen_objective(config: AlgorithmConfig, replicas: int = 1) -> Objective:
    """Return the objective that a recipe names, with its settings.

    Args:
        config: The recipe's algorithm.
        replicas: Number of replicas that divide an iteration's rollouts among themselves.

    Raises:
        ConfigError: The name or a setting is unknown, or the objective does not fit the rest of the recipe. The message
            says what to use instead.
    """
    policy = config.policy
    if policy.objective not in OBJECTIVES:
        raise ConfigError(
            f"policy.objective: there is no {policy.objective!r}; {did_you_mean(policy.objective, OBJECTIVES)}"
        )
    known = OBJECTIVES[policy.objective].settings()
    settings = dict(policy.objective_settings)
    if policy.clip is not None:
        settings["clip"] = policy.clip
    for name in settings:
        if name not in known:
            place, fix = f"policy.objective_settings.{name}", "leave it out"
            if name == "clip":
                place, fix = "policy.clip", "use policy.clip=null"
            own = f"; it has {', '.join(known)}" if known else ""
            raise ConfigError(f"{place}: the objective {policy.objective!r} has no {name!r}{own}; {fix}")
    shared = {"reduction": policy.reduction, "advantage_limit": policy.advantage_limit}
    try:
        objective = make_objective(policy.objective, settings, **shared)
    except ValueError as error:
        raise ConfigError(f"policy.objective_settings: {error}") from error
    _fits(objective, config, replicas)
    return objective


def needs_old_velocity(objective: Objective, config: AlgorithmConfig) -> bool:
    """Return whether the old policy needs forward passes of its own before the first update, at renoised points.

    True if the old policy is an average of the trained one, or if the rollout serves several updates. False for
    objectives on the steps of a rollout, where the old policy's velocity is stored already.
    """
    return objective.renoised and (objective.averages or config.policy.updates_per_rollout > 1)


def point_weights(objective: Objective, table: KernelTable, config: AlgorithmConfig) -> Tensor:
    """Return the weight of each trained point in the loss, float64: (T,) for the steps of `table`, or one per point.

    A step's weight is that of the equalizer, or 1 without it, and 0 for a step without noise. `table` is that of all
    steps, so that a window that moves does not change the weight of a step.
    """
    policy = config.policy
    if policy.points:  # an objective on renoised videos weighs noise levels itself
        return torch.ones(policy.points, dtype=torch.float64)
    own = objective.step_weights(table)
    balanced = equalizer(table) if own is None else own
    return balanced if policy.equalizer else table.stochastic.double()


def _fits(objective: Objective, config: AlgorithmConfig, replicas: int) -> None:
    policy, name = config.policy, config.policy.objective
    if objective.renoised and policy.points is None:
        raise ConfigError(
            f"policy.points: the objective {name!r} trains on videos with fresh noise; say at how many noise levels, "
            "such as policy.points=4"
        )
    if not objective.renoised and policy.points is not None:
        raise ConfigError(
            f"policy.points={policy.points}: the objective {name!r} trains on the stochastic steps of a rollout; leave "
            "it out"
        )
    if objective.renoised and config.kl.estimator == "sampled":
        raise ConfigError(
            f"kl.estimator=sampled: the objective {name!r} trains on videos with fresh noise, and the estimate needs "
            "the steps of a rollout; use kl.estimator=exact"
        )
    if objective.averages and not objective.renoised:
        raise ConfigError(
            f"policy.objective: {name!r} has its rollouts made by an average of the policy, and needs "
            "`renoised = True`: the ratios of steps are those of the policy that took them"
        )
    if objective.anchored and (config.kl.anchor == "none" or config.kl.share < 1):
        raise ConfigError(
            f"kl.anchor: the objective {name!r} compares with the anchor at every point; use kl.anchor=fixed or "
            "moving, and kl.share=1"
        )
    if objective.paired:
        _pairs_fit(config, replicas)


def _pairs_fit(config: AlgorithmConfig, replicas: int) -> None:
    """Refuse a recipe that does not select pairs, or that splits a pair among batches or a group among replicas."""
    policy = config.policy
    group, batch, name = policy.num_generations, policy.batch_size, policy.objective
    if policy.select != 1:
        raise ConfigError(
            f"policy.select: the objective {name!r} trains on the best and the worst video of a group; use "
            "policy.select=1"
        )
    if batch % 2 or (group % batch and batch % group):
        raise ConfigError(
            f"policy.batch_size={batch}: the objective {name!r} needs both videos of a pair in a batch; use an even "
            f"number that divides num_generations={group}, or a multiple of that"
        )
    if config.rollouts // replicas % group:
        raise ConfigError(
            f"policy.prompts_per_iteration={policy.prompts_per_iteration}: the objective {name!r} compares the videos "
            f"of a group, and {replicas} replicas do not get whole groups of {group}; use a multiple of {replicas}"
        )
