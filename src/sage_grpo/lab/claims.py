"""Claims about the method, each with its effect, interval, test and verdict."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sage_grpo.lab.grid import TARGET, TRAINED
from sage_grpo.statistics import Effect, effect, paired, verdict

TEST = "paired t over seeds"
# The smallest effects that would matter to a user: two runs that differ by less are equivalent. Fixed before the runs
# that they judge. The paper's choices gain a reward of 0.6; the base's distance is 0.125.
MARGINS = {
    "reward": 0.05,
    "distance": 0.005,
    "share": 0.03,  # of the base's diversity
    "std": 0.05,  # of rewards, which is about 1
    "log KL": 0.2,
}
Measure = Callable[[str], list[float]]  # of an experiment, one value a seed


@dataclass(frozen=True)
class Claim:
    statement: str
    source: str
    measured: str
    test: str
    verdict: str

    def row(self) -> str:
        return f"| {self.statement} | {self.source} | {self.measured} | {self.test} | **{self.verdict}** |"


class Results:
    """Runs by experiment and seed, against the base model on the same fresh samples."""

    def __init__(self, runs: Sequence[dict[str, Any]], base: dict[str, Any]) -> None:
        self.runs: dict[str, dict[int, dict[str, Any]]] = {}
        for run in runs:
            self.runs.setdefault(run["name"], {})[run["seed"]] = run
        self.base = base

    def _per_seed(self, name: str, key: str) -> list[float]:
        return [run["evaluation"][key] for _, run in sorted(self.runs[name].items())]

    def gain(self, name: str) -> list[float]:
        return [value - self.base["reward"] for value in self._per_seed(name, "reward")]

    def accuracy(self, name: str) -> list[float]:
        """Share of prompts followed."""
        return self._per_seed(name, "accuracy")

    def drift(self, name: str) -> list[float]:
        """Rise of the distance to the manifold."""
        return [value - self.base["distance"] for value in self._per_seed(name, "distance")]

    def diversity(self, name: str) -> list[float]:
        return [value / self.base["diversity"] for value in self._per_seed(name, "diversity")]

    def late(self, name: str, curve: str, last: int = 10) -> list[float]:
        """Mean of the last points of a curve, one a seed."""
        out = []
        for _, run in sorted(self.runs[name].items()):
            values = [value for _, value in run["curves"][curve][-last:]]
            out.append(sum(values) / len(values))
        return out


def compare(measure: Measure, a: str, b: str) -> Effect:
    return paired(measure(a), measure(b))


def judge(results: Results, direct: dict[str, Any]) -> list[Claim]:
    """Every claim that the data can settle."""
    trained = (_equalizer, _kernels, _trust, _weight, _gauge, _best)
    return [*_direct(direct), *(claim for part in trained for claim in part(results))]


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
            f"noise after a step / theory within {worst:.1%}, {len(ratios)} steps of five kernels",
            "256 real clips, model's own velocity",
            "reproduced" if worst < 0.1 else "undecided",
        )
    )
    for ending, statement in (
        ("noisy", "Rollouts with SAGE's kernel stay nearer to the manifold than FlowGRPO's, last step noisy"),
        ("clean", "The same with a deterministic last step"),
    ):
        difference = paired(direct["quality"][f"flow-{ending}"], direct["quality"][f"sage-{ending}"])
        claims.append(
            Claim(
                statement,
                "Fig. 2, 9",
                f"distance flow − sage {difference}",
                "paired t over rollouts",
                verdict(difference, margin=MARGINS["distance"]),
            )
        )
    raw, equal = (max(direct["gradient"][k]["norm"]) / min(direct["gradient"][k]["norm"]) for k in ("raw", "equalized"))
    claims.append(
        Claim(
            "Gradient norms differ by a factor above ten over timesteps; the equalizer brings them within a small one",
            "Fig. 4, Eq. 8-9",
            f"max/min {raw:.1f} raw, {equal:.1f} equalized",
            "parameter gradients at fixed weights",
            "reproduced" if raw > 10 and equal < 4 else "not reproduced",
        )
    )
    return claims


def _equalizer(results: Results) -> list[Claim]:
    differences = []
    claims = []
    for kernel in TRAINED:
        on, off = results.gain(f"kernel-{kernel}"), results.gain(f"kernel-{kernel}-unequal")
        differences += [a - b for a, b in zip(on, off, strict=True)]
    difference = effect(differences)
    claims.append(
        Claim(
            "The gradient equalizer raises the reward, over all kernels",
            "Fig. 3",
            f"reward on − off {difference}",
            "paired t over kernels × seeds",
            verdict(difference, margin=MARGINS["reward"]),
        )
    )
    return claims


def _kernels(results: Results) -> list[Claim]:
    others = ("flow", "cps")

    def claim(statement: str, source: str, other: str) -> Claim:
        difference = compare(results.gain, "kernel-sage", other)
        return Claim(statement, source, f"reward {difference}", TEST, verdict(difference, margin=MARGINS["reward"]))

    return [
        *(claim(f"SAGE's kernel earns more reward than {k} at equal η", "Table 2", f"kernel-{k}") for k in others),
        *(claim(f"… and than {k} at equal exploration", "Table 2, matched", f"matched-{k}") for k in others),
        claim(
            "Ending rollouts without noise is better for training than keeping the kernel's last noise",
            "not in the paper",
            "noisy-end-sage",
        ),
    ]


def _trust(results: Results) -> list[Claim]:
    dual = "kernel-sage"

    def claim(
        statement: str, source: str, a: str, b: str, measure: Measure, unit: str, expected: str = "positive"
    ) -> Claim:
        difference = compare(measure, a, b)
        found = verdict(difference, expected=expected, margin=MARGINS[unit])
        return Claim(statement, source, f"{unit} {difference}", TEST, found)

    std = paired(results.late(dual, "reward/std"), results.late("kl-moving", "reward/std"))
    return [
        claim(
            "A fixed anchor underfits: a moving one earns more",
            "Fig. 8a",
            "kl-moving",
            "kl-fixed",
            results.gain,
            "reward",
        ),
        claim("Dual KL earns more reward than moving KL alone", "Fig. 8a", dual, "kl-moving", results.gain, "reward"),
        claim("Dual KL earns more reward than no KL", "Fig. 8a, Table 2", dual, "kl-none", results.gain, "reward"),
        claim(
            "Without KL the policy drifts further from the data than with dual KL",
            "Sec. 3.2.2",
            "kl-none",
            dual,
            results.drift,
            "distance",
        ),
        claim(
            "Without KL the policy loses more diversity",
            "Sec. 3.2.2",
            "kl-none",
            dual,
            results.diversity,
            "share",
            "negative",
        ),
        claim(
            "The previous-policy term alone lets the policy drift further than dual KL",
            "Sec. 3.2.2",
            "kl-step",
            dual,
            results.drift,
            "distance",
        ),
        Claim(
            "Dual KL keeps exploration (late std of rewards) higher than moving KL",
            "Fig. 8b",
            f"std {std}",
            TEST,
            verdict(std, margin=MARGINS["std"]),
        ),
    ]


def _weight(results: Results) -> list[Claim]:
    difference = compare(results.gain, "lambda-two-stage", "kernel-sage")
    claims = [
        Claim(
            "A two-stage λ (weak, then strong) earns more than a constant one",
            "Fig. 7",
            f"reward {difference}",
            TEST,
            verdict(difference, margin=MARGINS["reward"]),
        )
    ]
    ends = {
        sign: [run["curves"]["kl_weight"][-1][1] for run in results.runs[f"lambda-{sign}"].values()]
        for sign in ("paper", "lagrangian")
    }
    at_bound = {sign: sum(v <= 0.0051 or v >= 4.99 for v in values) for sign, values in ends.items()}
    n = len(ends["paper"])
    evidence = f"λ ends at a bound: printed sign {at_bound['paper']} of {n}, Lagrangian {at_bound['lagrangian']} of {n}"
    outcome = "not reproduced" if at_bound["paper"] > at_bound["lagrangian"] else "undecided"
    claims.append(
        Claim(
            "The feedback on λ as printed (Eq. 42) holds the KL near its target", "Eq. 42", evidence, "count", outcome
        )
    )
    errors = {
        s: [abs(math.log(max(v, 1e-12) / TARGET)) for v in results.late(f"lambda-{s}", "approx_kl", 20)]
        for s in ("paper", "lagrangian")
    }
    nearer = paired(errors["paper"], errors["lagrangian"])
    claims.append(
        Claim(
            "With the Lagrangian sign the KL ends nearer to its target than with the printed one",
            "ours",
            f"distance of log KL to log target {nearer}",
            TEST,
            verdict(nearer, margin=MARGINS["log KL"]),
        )
    )
    return claims


def _gauge(results: Results) -> list[Claim]:
    """A run that is paid for visual quality alone and held by nothing, beside the paper's choices."""
    paid = effect(
        [run["evaluation"]["scores"][0] - results.base["scores"][0] for run in results.runs["hacking"].values()]
    )
    rang = {
        name: sum(bool(run["alarms"]) for run in results.runs[name].values()) for name in ("hacking", "kernel-sage")
    }
    n = len(results.runs["hacking"])
    followed = sum(results.accuracy("hacking")) / n
    evidence = (
        f"its reward VQ {paid}; prompts followed {results.base['accuracy']:.0%} → {followed:.0%}; "
        f"alarms in {rang['hacking']} of {n} runs, paper's choices {rang['kernel-sage']} of {n}"
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
    more, nearer = (compare(measure, "best", "kernel-sage") for measure in (results.gain, results.drift))
    return [
        Claim(
            "Our recipe `lab-fast` earns more reward than the paper's choices at equal cost",
            "ours",
            f"reward {more}",
            TEST,
            verdict(more, margin=MARGINS["reward"]),
        ),
        Claim(
            "… and drifts less from the data",
            "ours",
            f"distance {nearer}",
            TEST,
            verdict(nearer, expected="negative", margin=MARGINS["distance"]),
        ),
    ]


def as_markdown(claims: Sequence[Claim]) -> str:
    head = "| claim | from | measured [95 %] | test | verdict |\n|---|---|---|---|---|\n"
    return head + "\n".join(claim.row() for claim in claims) + "\n"
