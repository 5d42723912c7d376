"""Compare several runs: which settings differ, and which runs are one experiment with several seeds."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sage_grpo.runs.read import DEFAULTS, PLACES, RunRecord
from sage_grpo.runs.redact import clean_settings

MISSING = object()


@dataclass(frozen=True)
class Group:
    """Runs that are drawn as one curve: a single run, or one experiment with several seeds.

    `look` is the number of its colour and dash.
    """

    name: str
    runs: Sequence[RunRecord]
    look: int

    @property
    def n(self) -> int:
        return len(self.runs)

    @property
    def shortest(self) -> int:
        return min(run.iterations for run in self.runs)


def value_text(key: str, value: Any) -> str:
    if value is None:
        return "none"
    shown = presentable(key, value)
    return shown if isinstance(shown, str) else json.dumps(shown, ensure_ascii=False)


def presentable(key: str, value: Any) -> Any:
    """Return the value of the setting `key`, with secrets in it hidden.

    A page may be passed on to others.
    """
    return clean_settings(value, key)


def effective(run: RunRecord, key: str) -> Any:
    """Return the value of the setting `key` that a run was trained with.

    If the file of an older run lacks the setting, return today's default, or `MISSING` if there is no default.
    """
    return run.settings.get(key, DEFAULTS.get(key, MISSING))


def all_keys(runs: Sequence[RunRecord]) -> list[str]:
    """Return the names of all settings: in the order of the recipe, then those that only these runs have."""
    return list(dict.fromkeys([*DEFAULTS, *(key for run in runs for key in run.settings)]))


def differing(runs: Sequence[RunRecord]) -> list[str]:
    return [key for key in all_keys(runs) if key not in PLACES and any(not same(runs[0], run, key) for run in runs)]


def same(run: RunRecord, other: RunRecord, key: str) -> bool:
    return bool(effective(run, key) == effective(other, key))


def cell(run: RunRecord, key: str) -> str:
    """Return the value of a setting as text for a table, or a dash if the run has no such setting.

    The text says if the value is the default, or if the run's own file lacks the setting.
    """
    value = effective(run, key)
    if value is MISSING:
        return "–"
    text = value_text(key, value)
    if key not in run.settings:
        return f"{text} (not in its file: today's default)"
    return f"{text} (default)" if key in DEFAULTS and value == DEFAULTS[key] else text


def changed(run: RunRecord) -> list[str]:
    """Return the names of a run's settings that differ from today's defaults, without those that name folders."""
    return [
        key
        for key in all_keys([run])
        if key in run.settings and key not in PLACES and (key not in DEFAULTS or run.settings[key] != DEFAULTS[key])
    ]


def changed_on_resume(run: RunRecord) -> dict[str, tuple[str, str]]:
    """Return the settings that changed when the run was resumed, with their values before and after, as text."""
    before, after = run.earlier, run.settings
    keys = [key for key in dict.fromkeys([*before, *after]) if key not in PLACES and before.get(key) != after.get(key)]
    return {key: (value_text(key, before.get(key)), value_text(key, after.get(key))) for key in keys}


def grouped(runs: Sequence[RunRecord]) -> tuple[list[Group], list[str]]:
    """Pool runs that differ in nothing but their seed, and return the groups with notices for the reader.

    Runs with equal settings are not pooled if two of them have the same seed.
    """
    by_settings: dict[tuple[str, ...], list[RunRecord]] = {}
    keys = [key for key in all_keys(runs) if key not in PLACES and key != "seed"]
    for run in runs:
        by_settings.setdefault(tuple(repr(effective(run, key)) for key in keys), []).append(run)
    groups: list[Group] = []
    notices = []
    for members in by_settings.values():
        seeds = [run.seed for run in members]
        if len(members) == 1 or len(set(seeds)) < len(seeds):
            groups += [Group(run.name, [run], len(groups) + i) for i, run in enumerate(members)]
            if len(members) > 1:
                names = ", ".join(run.name for run in members)
                notices.append(
                    f"{names} have equal settings, and some the same seed: they are not independent runs, "
                    "so they are not pooled."
                )
        else:
            groups.append(Group(f"{members[0].name} ({len(members)} seeds)", members, len(groups)))
    single = [group.name for group in groups if group.n == 1]
    if len(runs) > 1 and single:
        notices.append(
            f"One seed each: {', '.join(single)}. A curve of one run shows no spread among seeds, so a "
            "difference here is no evidence yet: repeat each setting with other seeds "
            "(seed=1 run.out=…) and give all runs to this report."
        )
    return groups, notices
