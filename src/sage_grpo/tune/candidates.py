"""The candidates of a search: all combinations of the values to try, each a set of overrides of the recipe."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from sage_grpo.config import ConfigError, RecipeConfig, load_recipe
from sage_grpo.registry import load_trusted_recipe

RATE = "optimizer.lr"
AROUND = (1 / 9, 1 / 3**1.5, 1 / 3, 1 / 3**0.5, 1.0, 3**0.5, 3.0, 3**1.5, 9.0)  # times the recipe's learning rate
# What candidates are compared by, or where they are written: with another of these their rewards say nothing.
FIXED = ("rewards", "policy.reward_weights", "prompts", "seed", "run", "model", "monitors")


@dataclass(frozen=True)
class Candidate:
    overrides: tuple[str, ...]

    @property
    def name(self) -> str:
        return " ".join(self.overrides)

    @property
    def folder(self) -> str:
        return re.sub(r"[^\w.=+-]+", "_", self.name)


def parse(tried: Sequence[str]) -> dict[str, list[str]]:
    """Parse texts such as `optimizer.lr=1e-4,3e-4` into a dict from each setting to the list of its values.

    Commas inside brackets belong to a value.
    """
    values: dict[str, list[str]] = {}
    for text in tried:
        key, sign, listed = text.partition("=")
        if not sign or not key or not listed:
            raise ConfigError(f"--try {text!r} is not of the form key=value,value, such as {RATE}=1e-4,3e-4")
        if any(key == fixed or key.startswith(f"{fixed}.") for fixed in FIXED):
            raise ConfigError(f"--try {key}: rewards of runs that differ in this do not compare; try other settings")
        values[key] = re.split(r",(?![^\[{]*[\]}])", listed)
    return values


def make_candidates(source: str | Path, overrides: Sequence[str], tried: Sequence[str]) -> list[Candidate]:
    """Return one candidate for each combination of the values to try, each checked as a recipe.

    If `tried` is empty, the candidates are nine learning rates around the learning rate of the recipe.
    """
    base = load_trusted_recipe(source, list(overrides))
    values = parse(tried) or {RATE: [f"{base.optimizer.lr * factor:.2g}" for factor in AROUND]}
    pairs = [[f"{key}={value.strip()}" for value in listed] for key, listed in values.items()]
    made = [Candidate(chosen) for chosen in product(*pairs)]
    for candidate in made:
        settings_of(source, overrides, candidate)
    if len(made) < 2 or len({candidate.folder for candidate in made}) < len(made):
        raise ConfigError("--try needs two values at least, and none of them twice")
    return made


def settings_of(source: str | Path, overrides: Sequence[str], candidate: Candidate) -> RecipeConfig:
    return load_recipe(source, [*overrides, *candidate.overrides])
