"""Merging of adapters into the weights of a model, and a measure of how much of their update survives rounding."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sage_grpo.core.video_model import networks
from sage_grpo.weights.parts import kept_in_float32


@dataclass
class Survival:
    """Sums over all merged layers that say how much of an update ΔW is left after rounding.

    If `written` is the rounded W + ΔW, the figures are survives = ⟨written - W, ΔW⟩/‖ΔW‖², and
    rounding_error = ‖written - W - ΔW‖/‖ΔW‖.

    A change below half a step of the number format vanishes: bfloat16 has steps of 0.4 to 0.8 % of a weight.
    """

    kept: float = 0.0
    error: float = 0.0
    update: float = 0.0

    def add(self, weight: Tensor, update: Tensor, written: Tensor) -> None:
        change = written.float() - weight
        self.kept += (change * update).sum().item()
        self.error += (change - update).square().sum().item()
        self.update += update.square().sum().item()

    def figures(self) -> dict[str, float]:
        if not self.update:  # nothing was trained, so nothing is lost
            return {"survives": 1.0, "rounding_error": 0.0}
        return {"survives": self.kept / self.update, "rounding_error": (self.error / self.update) ** 0.5}


@torch.no_grad()
def merge_adapters(module: nn.Module, dtype: torch.dtype = torch.float32) -> dict[str, dict[str, float]]:
    """Replace every layer that has an adapter by a plain layer with the weights W + (alpha/rank)·B·A, in place.

    The weights are added in float32 and rounded to `dtype` once, layer by layer. The module then has no adapters.

    Returns:
        The figures of `Survival` by precision: for `dtype`, and for bfloat16, in which most people will load the model.
    """
    from peft.tuners.lora import LoraLayer  # noqa: PLC0415 - an extra

    survival = {kind: Survival() for kind in (dtype, torch.bfloat16)}
    for part in networks(module).values():
        for name, layer in [(n, m) for n, m in part.named_modules() if isinstance(m, LoraLayer)]:
            plain, exact = layer.get_base_layer(), kept_in_float32(part, name)
            weight, update = plain.weight.float(), layer.get_delta_weight("default").float()
            merged = weight + update
            for kind, survived in survival.items():
                survived.add(weight, update, merged if exact else merged.to(kind))
            plain.weight = nn.Parameter(merged if exact else merged.to(dtype), requires_grad=False)
            part.set_submodule(name, plain)
        if getattr(part, "_hf_peft_config_loaded", False):
            setattr(part, "_hf_peft_config_loaded", False)  # noqa: B010 - diffusers' own mark
            del part.peft_config
    return {str(kind).removeprefix("torch."): survived.figures() for kind, survived in survival.items()}
