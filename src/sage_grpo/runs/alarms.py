"""Alarms of the drift gauge: which limits a run crosses, and by how much, in words.

This module does not need torch, so that a run's log can be judged on a machine without torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from sage_grpo.config import GaugeConfig


@dataclass(frozen=True)
class Alarm:
    """A measure of the drift gauge that has crossed its limit; `text` is the sentence about it that people see."""

    measure: str
    value: float
    limit: float
    text: str


# what is measured, whether the limit is an upper one, and its sentence
LIMITS = {
    "base_error": (
        True,
        "the base model's error on the policy's videos is ×{value:.2f} of that on its own "
        "(limit {limit:g}): they leave what it knows",
    ),
    "diversity": (
        False,
        "diversity within a group is ×{value:.2f} of the start (limit {limit:g}): the policy collapses",
    ),
    "saturation": (True, "black or white pixels rose by {value:+.0%} (limit {limit:.0%}): saturation"),
    "exposure": (True, "mean brightness moved by {value:+.0%} (limit {limit:.0%}): over- or under-exposure"),
    "motion": (
        False,
        "change from frame to frame is ×{value:.2f} of the start (limit {limit:g}): the video stands still",
    ),
    "clipping": (True, "samples of the sound at full scale rose by {value:+.0%} (limit {limit:.0%}): it is clipped"),
    "loudness": (False, "the sound is ×{value:.2f} as loud as at the start (limit {limit:g}): it falls silent"),
    "kl_initial": (True, "KL to the initial policy is {value:.2e} (limit {limit:g})"),
}


def crossed(config: GaugeConfig, now: Mapping[str, float]) -> list[Alarm]:
    """Return one alarm per limit in `config` that the measures `now` cross.

    A measure that is missing, or whose limit is None, raises no alarm.
    """
    alarms = []
    for name, (upper, words) in LIMITS.items():
        limit, value = getattr(config, name), now.get(name)
        if limit is None or value is None:
            continue
        compared = abs(value) if name == "exposure" else value
        if compared > limit if upper else compared < limit:
            alarms.append(Alarm(name, value, limit, words.format(value=value, limit=limit)))
    return alarms
