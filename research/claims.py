"""Claims about the method. Each has its effect, its interval, its test and its verdict."""

import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from scipy import stats

from research.grid import TARGET, TRAINED
from sage_grpo.statistics import Effect, effect, equivalent, holm, paired, verdict

TEST = "paired t over seeds"
CHECK = "check of the implementation"  # follows from a formula, so it could fail only by an error of ours
DEPENDS = "depends on the definition"
# The smallest effects that would matter to a user: two runs that differ by less are equivalent. Written down when seeds
# 0 to 4 had been seen, and before the others. `lab-paper` gains a reward of 0.6; the base's distance is 0.125.
MARGINS = {
    "reward": 0.05,
    "distance": 0.005,
    "share": 0.03,  # of the base's diversity
    "std": 0.05,  # of rewards, which is about 1
    "log KL": 0.2,
}
# Claims are looked at three times: with a quarter of the seeds, those that are open then with half, and what is still
# open with all. By Pocock's bound each look may err in 2.08 % of cases, so that all three together do in 5 %.
LOOKS = (1 / 4, 1 / 2, 1)
LEVEL = 1 - 0.0208
# Experiments that run on all seeds, whatever an earlier look says. Five seeds gave dual KL 0.015 less reward than
# moving KL, with an interval that left zero out; that is too few for a verdict of sign. The rule for this comparison:
# one look at all seeds, at `LEVEL`; `equivalent` if the difference is known to be below the margin, else by sign.
ALL_SEEDS = ("kl-moving",)
Measure = Callable[[str], dict[int, float]]  # of an experiment, by seed


@dataclass(frozen=True)
class Claim:
    statement: str
    source: str
    measured: str
    test: str
    verdict: str
    rests_on: tuple[str, ...] = ()
    """Names of experiments; if the claim is undecided, they are run on further seeds."""
    measured_on: tuple[str, ...] = ()
    """Names of direct measurements; if the claim is undecided, they are made on further rollouts."""
    against_margin: str = "–"
    p: float | None = None
    """The p-value of no effect, corrected by Holm among the claims about training; None for claims without one."""

    @property
    def ours(self) -> bool:
        """Whether the claim is our own, and not the paper's."""
        return self.source.startswith("ours")

    def row(self) -> str:
        p = "–" if self.p is None else f"{self.p:.1g}"
        cells = (self.statement, self.source, self.measured, self.against_margin, p, self.test, f"**{self.verdict}**")
        return f"| {' | '.join(cells)} |"


class Results:
    """The results of runs by experiment and seed, and those of the base model on the same fresh videos."""

    def __init__(self, runs: Sequence[dict[str, Any]], base: dict[str, Any]) -> None:
        self.runs: dict[str, dict[int, dict[str, Any]]] = {}
        for run in runs:
            self.runs.setdefault(run["name"], {})[run["seed"]] = run
        self.base = base

    def common(self, names: Collection[str]) -> "Results":
        """Return the results of these experiments, only on the seeds that all of them have."""
        seeds = set.intersection(*(set(self.runs[name]) for name in names))
        runs = [run for name in names for seed, run in self.runs[name].items() if seed in seeds]
        return Results(runs, self.base)

    def _per_seed(self, name: str, key: str) -> dict[int, float]:
        return {seed: run["evaluation"][key] for seed, run in sorted(self.runs[name].items())}

    def gain(self, name: str) -> dict[int, float]:
        return {seed: value - self.base["reward"] for seed, value in self._per_seed(name, "reward").items()}

    def accuracy(self, name: str) -> dict[int, float]:
        """Return the share of an experiment's videos that follow their prompts, 0 to 1, by seed."""
        return self._per_seed(name, "accuracy")

    def drift(self, name: str) -> dict[int, float]:
        """Return the mean distance of an experiment's videos to real clips, less that of the base model, by seed."""
        return {seed: value - self.base["distance"] for seed, value in self._per_seed(name, "distance").items()}

    def diversity(self, name: str) -> dict[int, float]:
        return {seed: value / self.base["diversity"] for seed, value in self._per_seed(name, "diversity").items()}

    def std(self, name: str) -> dict[int, float]:
        """Return the standard deviation of rewards in the last iterations, by seed: how much is still explored."""
        return self.late(name, "reward/std")

    def late(self, name: str, curve: str, last: int = 10) -> dict[int, float]:
        """Return the mean of the last `last` points of a curve in an experiment's log, by seed."""
        out = {}
        for seed, run in sorted(self.runs[name].items()):
            values = [value for _, value in run["curves"][curve][-last:]]
            out[seed] = sum(values) / len(values)
        return out


def differences(measure: Measure, a: str, b: str) -> list[float]:
    """Return the measure of experiment `a` less that of `b`, one value per seed that both have."""
    first, second = measure(a), measure(b)
    return [first[seed] - second[seed] for seed in sorted(first.keys() & second.keys())]


def compare(measure: Measure, a: str, b: str) -> Effect:
    return effect(differences(measure, a, b), LEVEL)


def size(found: Effect, margin: float) -> str:
    """Return how an effect compares with `margin`, the smallest effect that matters: `smaller`, `larger` or `open`.

    It is `open` if the interval allows both.
    """
    if equivalent(found, margin):
        return "smaller"
    return "larger" if found.low > margin or found.high < -margin else "open"


def p_of(found: Effect) -> float:
    """Return the two-sided p, by Student's t, that the mean of an effect is 0."""
    return float(2 * stats.t.sf(abs(found.standard_errors), found.n - 1))


def claim(
    statement: str, source: str, a: str, b: str, measure: Measure, unit: str, *, expected: str = "positive"
) -> Claim:
    """Return the claim that experiment `a` is above `b` in a measure, or below if `expected` is `negative`.

    `unit` names the measure and, in `MARGINS`, the smallest effect that matters.
    """
    difference = compare(measure, a, b)
    margin = MARGINS[unit]
    found = verdict(difference, expected=expected, margin=margin)
    measured, against = f"{unit} {difference}", size(difference, margin)
    return Claim(statement, source, measured, TEST, found, (a, b), against_margin=against, p=p_of(difference))


def judge(results: Results, direct: dict[str, Any]) -> list[Claim]:
    """Return all claims about direct measurements and about training, each with its verdict.

    `direct` is what `measure_directly` returns.
    """
    return [*_direct(direct), *judge_runs(results)]


def judge_runs(results: Results) -> list[Claim]:
    """Return the claims about training, each p corrected by Holm for the number of claims."""
    parts = (_equalizer, _kernels, _trust, _weight, _gauge, _best)
    claims = [claim for part in parts for claim in part(results)]
    corrected = iter(holm([claim.p for claim in claims if claim.p is not None]))
    return [claim if claim.p is None else replace(claim, p=next(corrected)) for claim in claims]


def _direct(direct: dict[str, Any]) -> list[Claim]:
    claims = []
    ratios = [
        m / t for kernel in direct["noise"].values() for m, t in zip(kernel["measured"], kernel["theory"], strict=True)
    ]
    worst = max(abs(r - 1) for r in ratios)
    claims.append(
        Claim(
            "Euler-type SDEs leave more noise than the schedule says, by Σ·Δ/σ + Σ²/4σ²; frozen-x̂0 kernels none",
            "Fig. 1, closed form",
            f"noise after a step / theory within {worst:.1%}, {len(ratios)} steps of five kernels, 256 clips",
            CHECK,
            "reproduced" if worst < 0.1 else "undecided",
        )
    )
    for ending, statement in (
        ("noisy", "Rollouts with SAGE's kernel stay closer to the manifold than FlowGRPO's, last step noisy"),
        ("clean", "The same with a deterministic last step"),
    ):
        flow, sage = f"flow-{ending}", f"sage-{ending}"
        difference = paired(direct["quality"][flow], direct["quality"][sage], LEVEL)
        claims.append(
            Claim(
                statement,
                "Fig. 2, 9",
                f"distance flow − sage {difference}",
                "paired t over rollouts",
                verdict(difference, margin=MARGINS["distance"]),
                measured_on=(flow, sage),
                against_margin=size(difference, MARGINS["distance"]),
            )
        )
    raw, equal = (max(direct["gradient"][k]["norm"]) / min(direct["gradient"][k]["norm"]) for k in ("raw", "equalized"))
    claims.append(
        Claim(
            "Gradient norms differ by a factor above ten over timesteps; the equalizer brings them within a small one",
            "Fig. 4, Eq. 8-9",
            f"max/min {raw:.1f} raw, {equal:.1f} equalized",
            CHECK,
            "reproduced" if raw > 10 and equal < 4 else "not reproduced",
        )
    )
    return claims


def _equalizer(results: Results) -> list[Claim]:
    pairs = [(f"kernel-{kernel}", f"kernel-{kernel}-unequal") for kernel in TRAINED]
    difference = effect([d for on, off in pairs for d in differences(results.gain, on, off)], LEVEL)
    return [
        Claim(
            "The gradient equalizer raises the reward, over all kernels",
            "Fig. 3",
            f"reward on − off {difference}",
            "paired t over kernels × seeds",
            verdict(difference, margin=MARGINS["reward"]),
            tuple(name for pair in pairs for name in pair),
            against_margin=size(difference, MARGINS["reward"]),
            p=p_of(difference),
        )
    ]


def _kernels(results: Results) -> list[Claim]:
    def against(statement: str, source: str, other: str, sage: str = "kernel-sage") -> Claim:
        return claim(statement, source, sage, other, results.gain, "reward")

    # `cps` cannot be moved to the exploration of `sage`, so `sage` is held back, which costs it reward. In the first
    # edition `cps` was moved as far as it goes, and the sign was the other one.
    held_back = against("… and than cps at equal exploration", "ours", "kernel-cps", sage="matched-sage")

    return [
        against("SAGE's kernel earns more reward than flow at equal η", "Table 2", "kernel-flow"),
        against("SAGE's kernel earns more reward than cps at equal η", "Table 2", "kernel-cps"),
        against("… and than flow at equal exploration", "ours", "matched-flow"),
        replace(held_back, verdict=DEPENDS),
        against(
            "Ending rollouts without noise is better for training than keeping the kernel's last noise",
            "ours",
            "noisy-end-sage",
        ),
    ]


def _trust(results: Results) -> list[Claim]:
    dual, gain, drift = "kernel-sage", results.gain, results.drift
    return [
        claim("A fixed anchor underfits: a moving one earns more", "Fig. 8a", "kl-moving", "kl-fixed", gain, "reward"),
        claim("Dual KL earns more reward than moving KL alone", "Fig. 8a", dual, "kl-moving", gain, "reward"),
        claim("Dual KL earns more reward than no KL", "Fig. 8a, Table 2", dual, "kl-none", gain, "reward"),
        claim(
            "Without KL the policy drifts further from the data than with dual KL",
            "Sec. 3.2.2",
            "kl-none",
            dual,
            drift,
            "distance",
        ),
        claim(
            "Without KL the policy loses more diversity",
            "Sec. 3.2.2",
            "kl-none",
            dual,
            results.diversity,
            "share",
            expected="negative",
        ),
        claim(
            "The previous-policy term alone lets the policy drift further than dual KL",
            "Sec. 3.2.2",
            "kl-step",
            dual,
            drift,
            "distance",
        ),
        claim(
            "Dual KL keeps exploration (late std of rewards) higher than moving KL",
            "Fig. 8b",
            dual,
            "kl-moving",
            results.std,
            "std",
        ),
    ]


def _weight(results: Results) -> list[Claim]:
    signs = ("lambda-paper", "lambda-lagrangian")
    ends = {sign: [run["curves"]["kl_weight"][-1][1] for run in results.runs[sign].values()] for sign in signs}
    printed, lagrangian = (sum(v <= 0.0051 or v >= 4.99 for v in ends[sign]) for sign in signs)
    n = len(ends[signs[0]])

    def off_target(name: str) -> dict[int, float]:
        late = results.late(name, "kl/penalty", 20)
        return {seed: abs(math.log(max(value, 1e-12) / TARGET)) for seed, value in late.items()}

    return [
        claim(
            "A two-stage λ (weak, then strong) earns more than a constant one",
            "Fig. 7",
            "lambda-two-stage",
            "kernel-sage",
            results.gain,
            "reward",
        ),
        Claim(
            "The feedback on λ as printed (Eq. 42) holds the KL near its target",
            "Eq. 42",
            f"λ ends at a bound: printed sign {printed} of {n}, Lagrangian {lagrangian} of {n}",
            CHECK,
            "not reproduced" if printed > lagrangian else "undecided",
            signs,
        ),
        replace(
            claim(
                "With the Lagrangian sign the KL ends closer to its target than with the printed one",
                "ours",
                *signs,
                off_target,
                "log KL",
            ),
            test=CHECK,
        ),
    ]


def _gauge(results: Results) -> list[Claim]:
    """Return the claim that the drift gauge sees a run that hacks its reward, and is silent on `lab-paper`.

    The run that hacks its reward is rewarded for visual quality alone, and no KL holds it back.
    """
    paid = effect(
        [run["evaluation"]["scores"][0] - results.base["scores"][0] for run in results.runs["hacking"].values()], LEVEL
    )
    rang = {
        name: sum(bool(run["alarms"]) for run in results.runs[name].values()) for name in ("hacking", "kernel-sage")
    }
    n, sound = len(results.runs["hacking"]), len(results.runs["kernel-sage"])
    followed = sum(results.accuracy("hacking").values()) / n
    evidence = (
        f"its reward VQ {paid}; prompts followed {results.base['accuracy']:.0%} → {followed:.0%}; "
        f"alarms in {rang['hacking']} of {n} runs, `lab-paper` {rang['kernel-sage']} of {sound}"
    )
    detected = paid.low > 0 and rang["hacking"] == n and rang["kernel-sage"] == 0
    return [
        Claim(
            "The drift gauge sees a run that hacks its reward, and is silent on a sound one",
            "ours",
            evidence,
            "count",
            "reproduced" if detected else "not reproduced",
        )
    ]


def _best(results: Results) -> list[Claim]:
    pair = ("best", "kernel-sage")
    more = "Our recipe `lab-fast` earns more reward than `lab-paper` at equal cost"
    return [
        claim(more, "ours", *pair, results.gain, "reward"),
        claim("… and drifts less from the data", "ours", *pair, results.drift, "distance", expected="negative"),
    ]


def counted(claims: Sequence[Claim]) -> str:
    """Return in words how many claims have each verdict, and how many are checks of the implementation.

    The paper's claims and our own are counted separately.
    """

    def of(whose: str, those: Sequence[Claim]) -> str:
        verdicts = ", ".join(f"{count} {name}" for name, count in Counter(c.verdict for c in those).most_common())
        checks = sum(claim.test == CHECK for claim in those)
        return f"{whose}, {len(those)}: {verdicts}. Checks of the implementation among them: {checks}."

    paper, ours = ([claim for claim in claims if claim.ours == whose] for whose in (False, True))
    return f"{of('The paper’s claims', paper)} {of('Our own claims', ours)}"


def as_markdown(claims: Sequence[Claim]) -> str:
    head = ("claim", "from", "measured [98 %]", "than the margin", "p", "test", "verdict")
    rows = [f"| {' | '.join(head)} |", "|---" * len(head) + "|", *(claim.row() for claim in claims)]
    return "\n".join(rows) + f"\n\n{counted(claims)}\n"
