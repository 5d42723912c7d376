"""Small things that the ways of tuning share."""

from typing import Any

from torch import nn


class TuningError(ValueError):
    """The recipe would not train what it says it trains."""


def has_adapters(module: nn.Module) -> bool:
    return any(".lora_A." in name for name, _ in module.named_parameters())


def require(thing: Any, attribute: str, setting: str) -> Any:
    if not hasattr(thing, attribute):
        raise TuningError(f"{setting}: {type(thing).__name__} has no {attribute}; leave the setting out for this model")
    return getattr(thing, attribute)
