"""The tables and figures of the paper: the training runs behind each, and the commands that make it from them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sage_grpo import registry
from sage_grpo.config import ConfigError, RecipeConfig
from sage_grpo.core.reward import Reward
from sage_grpo.evaluation.catalogue import entry

SCORES = ("VQ", "MQ", "TA")
ITERATIONS = 100  # the paper judges its models at iteration 100 (section 4.4)
STEPS = 40  # sampling steps of its judged videos

# Kernel and equalizer: Table 2 compares whole methods, and the equalizer belongs to SAGE-GRPO.
METHODS = {
    "DanceGRPO": ("dance", False),
    "FlowGRPO": ("flow", False),
    "CPS": ("cps_unscaled", False),
    "SAGE-GRPO": ("sage", True),
}
SETTINGS = {"A": (1.0, 1.0, 1.0), "B": (0.5, 0.5, 1.0)}
NO_KL, FIXED, STEPWISE, MOVING, DUAL = (
    "w/o KL",
    "w/ Fixed KL",
    "w/ Step-wise KL",
    "w/ Moving KL",
    "w/ Dual Moving KL",
)


@dataclass(frozen=True)
class Run:
    """One training run: its name and folder, its place in the table, and the settings that differ from the recipe."""

    name: str
    setting: str
    method: str
    variant: str
    overrides: tuple[str, ...]


@dataclass(frozen=True)
class Place:
    """The recipe that an experiment uses, by name and as settings, and the folder of the results."""

    base: str
    recipe: RecipeConfig
    out: str
    limit: int | None = None  # prompts of an evaluation; none means all

    @property
    def laboratory(self) -> bool:
        """Whether the recipe's model is one of the laboratory, which has prompts and scorers of its own."""
        known = registry.models().get(self.recipe.model.type)
        return known is not None and known.module.startswith("sage_grpo.lab")

    def folder(self, run: Run) -> str:
        return f"{self.out}/{run.name}"

    def evaluation(self, runs: Sequence[Run], prompts: str = "videos") -> list[str]:
        """Return the arguments of `sage-grpo eval` that compare the runs with the untrained model."""
        sources = [f"{run.name}={self.folder(run)}" for run in runs]
        own = [] if self.laboratory else ["--prompts", prompts, "--steps", str(STEPS)]
        scorers = [] if self.laboratory else ["--scorer", "clip", "--scorer", "pickscore"]
        limit = ["--limit", str(self.limit)] if self.limit else []
        return ["eval", f"base={self.base}", *sources, *own, *scorers, *limit, "--out", f"{self.out}/eval"]

    def report(self, runs: Sequence[Run]) -> list[str]:
        """Return the arguments of `sage-grpo report` that draw the curves of all runs in the same plots."""
        return ["report", *map(self.folder, runs), "--out", f"{self.out}/report.html"]


Commands = list[list[str]]


@dataclass(frozen=True)
class Experiment:
    """A table or figure: functions that return its training runs, and the commands that make it from the runs."""

    name: str
    title: str
    runs: Callable[[RecipeConfig], list[Run]]
    finish: Callable[[Place, list[Run]], Commands]
    note: str = ""


def kl_overrides(variant: str, recipe: RecipeConfig) -> tuple[str, ...]:
    """Return the settings of the KL strategy `variant`. The KL weight λ and its schedule stay those of the recipe."""
    velocity = recipe.kl.old_weight or 0.1
    return {
        NO_KL: ("kl.anchor=none", "kl.old_weight=0"),
        FIXED: ("kl.anchor=fixed", "kl.old_weight=0"),
        STEPWISE: ("kl.anchor=none", "kl.old_weight=1"),
        MOVING: ("kl.anchor=moving", "kl.old_weight=0"),
        DUAL: ("kl.anchor=moving", f"kl.old_weight={velocity:g}"),
    }[variant]


def method_run(setting: str, method: str, variant: str, recipe: RecipeConfig) -> Run:
    """Return the training run behind one row of Table 2: a method with a KL strategy, in a reward setting.

    Raises:
        ConfigError: If the recipe is not trained on VQ, MQ and TA.
    """
    require_scores(recipe)
    kernel, equalizer = METHODS[method]
    weights = ",".join(f"{weight:g}" for weight in SETTINGS[setting])
    return Run(
        f"{setting.lower()}-{kernel.removesuffix('_unscaled')}-{SLUGS[variant]}",
        setting,
        method,
        variant,
        (
            f"sampling.kernel={kernel}",
            f"policy.equalizer={str(equalizer).lower()}",
            f"policy.reward_weights=[{weights}]",
            *kl_overrides(variant, recipe),
        ),
    )


SLUGS = {NO_KL: "none", FIXED: "fixed", STEPWISE: "stepwise", MOVING: "moving", DUAL: "dual"}


def require_scores(recipe: RecipeConfig) -> None:
    """Refuse a recipe whose rewards do not give the scores VQ, MQ and TA, in this order."""
    names = [name for reward in recipe.rewards for name in score_names(reward.type)]
    if tuple(names) != SCORES:
        raise ConfigError(
            f"the paper's rewards are the scores {', '.join(SCORES)}; this recipe has {', '.join(names) or 'none'}; "
            "use a recipe with `videoalign`, such as hunyuan15-64gpu, or the laboratory's lab-paper"
        )


def score_names(reward: str) -> tuple[str, ...]:
    """Return the names of a reward's scores, without importing a built-in reward; empty if they are not known."""
    if reward in registry.rewards():
        return entry(reward).scores or ()
    own = registry.resolve_reward(reward)
    return tuple(own.names) if isinstance(own, type) and issubclass(own, Reward) else ()


def table_2_runs(recipe: RecipeConfig) -> list[Run]:
    """Return the 18 training runs of Table 2: baselines with two KL strategies, SAGE-GRPO with three."""
    return [
        method_run(setting, method, variant, recipe)
        for setting in SETTINGS
        for method in METHODS
        for variant in (NO_KL, FIXED, DUAL)
        if variant != DUAL or method == "SAGE-GRPO"
    ]


def table_3_runs(recipe: RecipeConfig) -> list[Run]:
    """Return the four runs of Table 3, in reward setting B: baselines with fixed KL, and SAGE-GRPO with dual KL.

    People compare the videos of the four methods.
    """
    return [method_run("B", method, DUAL if method == "SAGE-GRPO" else FIXED, recipe) for method in METHODS]


def figure_3_runs(recipe: RecipeConfig) -> list[Run]:
    """Return the eight runs of Figure 3: four kernels, each with and without the equalizer."""
    return [
        Run(
            f"{kernel.removesuffix('_unscaled')}-{'equalized' if on else 'raw'}",
            "",
            method,
            "w/ equalizer" if on else "w/o equalizer",
            (f"sampling.kernel={kernel}", f"policy.equalizer={str(on).lower()}"),
        )
        for method, (kernel, _) in METHODS.items()
        for on in (False, True)
    ]


def figure_7_runs(recipe: RecipeConfig) -> list[Run]:
    """Return the three runs of Figure 7, one per schedule of λ.

    The schedules are constant, two-stage, and two-stage with a tenth of the weight. With the paper's λ of 1e-5 they are
    1e-5, 1e-7 → 1e-5 and 1e-7 → 1e-6.
    """
    updates = recipe.run.iterations * recipe.policy.updates_per_rollout
    high, warmup = recipe.kl.high, recipe.kl.warmup or max(updates // 2, 1)
    schedules = {
        "constant": ("kl.warmup=0", f"kl.high={high:g}", f"kl.low={high / 100:g}"),
        "two-stage": (f"kl.warmup={warmup}", f"kl.high={high:g}", f"kl.low={high / 100:g}"),
        "two-stage-weak": (f"kl.warmup={warmup}", f"kl.high={high / 10:g}", f"kl.low={high / 100:g}"),
    }
    return [Run(name, "", "SAGE-GRPO", name, (*settings, "kl.feedback=none")) for name, settings in schedules.items()]


def figure_8_runs(recipe: RecipeConfig) -> list[Run]:
    """Return the five runs of Figure 8: four KL strategies, and one run without KL."""
    return [
        Run(SLUGS[variant], "", "SAGE-GRPO", variant, kl_overrides(variant, recipe))
        for variant in (NO_KL, FIXED, STEPWISE, MOVING, DUAL)
    ]


def main_run(recipe: RecipeConfig) -> list[Run]:
    """Return a single run, of the recipe as it is."""
    return [Run("sage", "", "SAGE-GRPO", DUAL, ())]


def no_runs(recipe: RecipeConfig) -> list[Run]:
    return []


def explain_commands(place: Place, kernels: Sequence[str], *more: str) -> Commands:
    sampling = place.recipe.sampling
    schedule = ["--steps", str(sampling.steps), "--shift", f"{sampling.shift:g}", "--eta", f"{sampling.eta:g}"]
    return [["explain", "--kernel", kernel, *schedule, *more] for kernel in kernels]


def table_3_commands(place: Place, runs: list[Run]) -> Commands:
    study = f"{place.out}/study"
    ours = next(run.name for run in runs if run.method == "SAGE-GRPO")
    return [
        place.evaluation(runs),
        ["study", "make", f"{place.out}/eval", "--method", ours, "--prompts", "32", "--out", study],
    ]


EXPERIMENTS = {
    experiment.name: experiment
    for experiment in (
        Experiment(
            "table1",
            "Noise of each method at every step",
            no_runs,
            lambda place, runs: explain_commands(place, ["dance", "flow", "sage"]),
        ),
        Experiment(
            "table2",
            "Four methods × KL strategies × two reward settings: 18 runs",
            table_2_runs,
            lambda place, runs: [place.evaluation(runs)],
            "The paper does not give the iteration of its Table 2; 100 is that of its user study.",
        ),
        Experiment(
            "table3",
            "What people prefer: SAGE-GRPO against each baseline",
            table_3_runs,
            table_3_commands,
            "Then `sage-grpo study run` on a server of yours, with 29 raters, and `sage-grpo study results`.",
        ),
        Experiment(
            "figure3",
            "Rewards with and without the equalizer, for four kernels",
            figure_3_runs,
            lambda place, runs: [place.report(runs)],
        ),
        Experiment(
            "figure4",
            "Size of the gradient at every noise level",
            main_run,
            lambda place, runs: [place.report(runs)],
            "The report's heat map shows it: gradient by step and iteration.",
        ),
        Experiment(
            "figure7",
            "Rewards under three schedules of the KL weight λ",
            figure_7_runs,
            lambda place, runs: [place.report(runs)],
        ),
        Experiment(
            "figure8",
            "Mean and spread of the reward under five KL strategies",
            figure_8_runs,
            lambda place, runs: [place.report(runs)],
        ),
        Experiment(
            "figure9",
            "Noise of FlowGRPO and SAGE-GRPO in three regimes",
            no_runs,
            lambda place, runs: explain_commands(place, ["sage"], "--plot", f"{place.out}/figure9.png"),
        ),
        Experiment(
            "gallery",
            "Videos of five KL strategies and the base, for the prompts of the gallery (also Figures 11, 12)",
            figure_8_runs,
            lambda place, runs: [place.evaluation(runs, "gallery")],
        ),
        Experiment(
            "comparison",
            "Videos of four methods, for the prompts of the gallery (also Figures 1b, 6, 10)",
            table_3_runs,
            lambda place, runs: [place.evaluation(runs, "gallery")],
        ),
    )
}
