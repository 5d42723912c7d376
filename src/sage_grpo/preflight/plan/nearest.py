"""Proposals of layouts that work, close to one that does not."""

import math
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

from sage_grpo.config import RecipeConfig, load_recipe
from sage_grpo.config.load import read_settings
from sage_grpo.errors import UserError

MANY = 3  # proposals
KEYS = (
    "parallel.processes",
    "parallel.sequence",
    "parallel.replicate",
    "policy.batch_size",
    "policy.prompts_per_iteration",
)
Layout = tuple[int, ...]


def asked_layout(settings: dict[str, Any]) -> tuple[Layout, int]:
    """Return the layout that the settings ask for, and the number of videos in a group.

    A layout has one value per key of `KEYS`. Keys that are not set have their defaults.
    """
    usual = RecipeConfig()

    def value(key: str) -> int:
        section, name = key.split(".")
        return int((settings.get(section) or {}).get(name, getattr(getattr(usual, section), name)))

    return tuple(map(value, KEYS)), value("policy.num_generations")


def candidates(requested: Layout, group: int) -> list[Layout]:
    """Return layouts whose numbers divide evenly, the one closest to the requested layout first.

    The closest one changes the fewest keys, and these by the smallest factors. `group` is the number of videos in a
    group.
    """
    processes, sequence, replicate, batch, prompts = requested
    counts = {*range(max(processes - 8, 1), processes + 9), max(processes // 8, 1) * 8, (processes // 8 + 1) * 8}
    layouts = set()
    for n, s, r, b in product(counts, {1, 2, 4, 8, sequence}, {1, replicate}, {1, batch}):
        unit = n // s * b  # videos that are made together
        if n % (s * r):
            continue
        step = unit // math.gcd(unit, group)
        layouts |= {(n, s, r, b, p) for p in (prompts, prompts // step * step, (prompts // step + 1) * step) if p}

    def distance(layout: Layout) -> tuple[int, float]:
        changes = [abs(math.log(new / old)) for new, old in zip(layout, requested, strict=True) if new != old]
        return len(changes), sum(changes)

    return sorted(layouts - {requested}, key=distance)


def nearest_layouts(recipe: Any, overrides: Sequence[str], works: Callable[[RecipeConfig], Any]) -> list[list[str]]:
    """Return at most `MANY` lists of overrides that each make the recipe valid, the smallest change first.

    `works` is called with a changed recipe, and raises a `UserError` if the recipe is not valid.
    """
    requested, group = asked_layout(read_settings(recipe, overrides))
    alternatives: list[list[str]] = []
    for layout in candidates(requested, group):
        pairs = zip(KEYS, layout, requested, strict=True)
        changes = [f"{key}={new}" for key, new, old in pairs if new != old]
        try:
            works(load_recipe(recipe, [*overrides, *changes]))
        except UserError:
            continue
        alternatives.append(changes)
        if len(alternatives) == MANY:
            break
    return alternatives
