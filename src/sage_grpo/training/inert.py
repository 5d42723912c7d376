"""Notes about terms of the loss that a recipe sets but that have no effect."""

from sage_grpo.config import RecipeConfig
from sage_grpo.core.anchor import is_evaluated
from sage_grpo.core.objectives import chosen_objective


def inert_terms(config: RecipeConfig) -> list[str]:
    """Return a sentence for each term of the loss that has no effect in this recipe, with a setting that changes that.

    Such recipes are valid, so no error is raised.
    """
    kl, policy, objective = config.kl, config.policy, chosen_objective(config, config.parallel.replicas)
    notes = []
    if not objective.renoised and (config.sampling.eta == 0 or config.sampling.kernel == "ode"):
        notes.append(
            f"sampling.eta: no step of a rollout has noise, so the objective {policy.objective!r} has nothing to train "
            "on; use sampling.eta=0.5, or an objective with policy.points"
        )
    if kl.outside_weight and objective.renoised:
        notes.append(
            f"kl.outside_weight={kl.outside_weight}: the objective {policy.objective!r} trains at all noise levels, so "
            "nothing is outside; use kl.outside_weight=0"
        )
    if kl.high == 0:
        if kl.anchor != "none" and not objective.anchored:
            notes.append("kl.high=0: no KL is trained on, but the anchor is evaluated; kl.anchor=none saves its passes")
        return notes
    if kl.anchor != "none" and not any(is_evaluated(kl, updates) for updates in range(kl.ref_model_sync_steps + 1)):
        notes.append(
            f"kl.ref_model_sync_steps={kl.ref_model_sync_steps}: the anchor is a fresh copy of the policy at each "
            "update, and its KL is 0; use kl.ref_model_sync_steps=10"
        )
    elif kl.anchor != "none" and kl.anchor_weight == 0 and not objective.anchored:
        notes.append("kl.anchor_weight=0: the anchor is evaluated and has no weight; kl.anchor=none saves its passes")
    once = policy.updates_per_rollout == 1 and not objective.averages
    if kl.old_weight > 0 and kl.estimator == "exact" and once:
        estimate = "" if objective.renoised else "kl.estimator=sampled or "
        alone = " It is the only KL of this recipe." if kl.anchor == "none" or kl.anchor_weight == 0 else ""
        notes.append(
            "kl.old_weight: with one update per rollout the KL to the previous policy is 0 in closed form, and its "
            f"gradient too; it acts with {estimate}policy.num_minibatches=2.{alone}"
        )
    return notes
