"""Small functions that several modules of this package share."""

from typing import Any

from torch import nn

from sage_grpo.errors import UserError


class TuningError(UserError, ValueError):
    """Raised when the model cannot be trained as the section `tuning` of a recipe says."""


def has_adapters(module: nn.Module) -> bool:
    return any(".lora_A." in name for name, _ in module.named_parameters())


def kept_in_float32(part: nn.Module, name: str) -> bool:
    """Return whether diffusers loads the weight `name` of the network `part` in float32, whatever the precision.

    The network's class lists such layers by one part of their dotted name, such as `norm`.
    """
    return any(word in name.split(".") for word in getattr(part, "_keep_in_fp32_modules", None) or ())


def require(thing: Any, attribute: str, setting: str) -> Any:
    if not hasattr(thing, attribute):
        raise TuningError(f"{setting}: {type(thing).__name__} has no {attribute}; leave the setting out for this model")
    return getattr(thing, attribute)
