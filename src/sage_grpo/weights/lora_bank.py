"""Low-rank adapters (LoRA) by peft. The policy is one adapter and the anchor is another. Without an active adapter, the
network computes as the base model."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn

from sage_grpo.config import TuningConfig
from sage_grpo.core.rollout import keyed_rng
from sage_grpo.core.video_model import VideoModel, networks, whole
from sage_grpo.suggest import nearest
from sage_grpo.weights.parts import TuningError

POLICY = "default"  # peft's own name, so that the exported files look as everybody's


def lora_layers(module: nn.Module) -> list[LoraLayer]:
    return [layer for layer in module.modules() if isinstance(layer, LoraLayer)]


def add_lora(model: VideoModel, config: TuningConfig, seed: int = 0) -> None:
    """Freeze the model and add float32 adapters to its target layers, in place.

    With their initial weights, which follow from `seed`, the adapters do not change what the model computes.
    """
    targets, unused = list(config.targets or model.lora_targets), list(model.unused)
    check_targets(model.module, targets)
    model.module.requires_grad_(False)
    with torch.random.fork_rng(devices=[]):  # peft draws initial values; ours follow from seed and name alone
        for part in networks(model.module).values():
            _inject(part, _lora_config(config, targets, unused), POLICY)
    with torch.no_grad():
        for name, parameter in model.module.named_parameters():
            if ".lora_" in name and not parameter.is_meta:
                parameter.copy_(initial_adapter(name, tuple(parameter.shape), seed))
    for layer in lora_layers(model.module):
        layer.set_adapter(POLICY)


def limit_adapters(model: VideoModel, min_sigma: float) -> None:
    """Make the model compute without its adapters below a noise level: the policy's and those of all copies."""
    model.min_sigma = min_sigma
    model.without_adapters = partial(without_adapters, lora_layers(model.module))


@contextmanager
def without_adapters(layers: Sequence[LoraLayer]) -> Iterator[None]:
    """Compute as the base model inside the block, in these layers."""
    before = [layer._disable_adapters for layer in layers]
    for layer in layers:
        layer._disable_adapters = True  # not peft's own method, which would also freeze the policy's weights
    try:
        yield
    finally:
        for layer, disabled in zip(layers, before, strict=True):
            layer._disable_adapters = disabled


def initial_adapter(name: str, shape: tuple[int, ...], seed: int) -> Tensor:
    """Return the initial weights of the adapter matrix `name`: 0 for B; for A uniform in ±1/√inputs, as in peft.

    The weights depend on seed and layer alone, so they are the same on every process and in every layout.
    """
    if ".lora_B." in name:
        return torch.zeros(shape)
    drawn = keyed_rng(seed, "lora", name.split(".lora_A.", maxsplit=1)[0]).uniform(-1, 1, shape) / shape[1] ** 0.5
    return torch.from_numpy(drawn).float()


def _lora_config(config: TuningConfig, targets: Sequence[str], unused: Sequence[str]) -> LoraConfig:
    exclude = "|".join(f"(.*{pattern}.*)" for pattern in unused) or None
    return LoraConfig(
        r=config.rank,
        lora_alpha=config.alpha or config.rank,
        target_modules=list(targets),
        exclude_modules=exclude,
    )


def _inject(part: Any, config: LoraConfig, name: str) -> None:
    if hasattr(part, "add_adapter"):  # a diffusers model: it then knows how to save its adapters
        part.add_adapter(config, name)
    else:
        inject_adapter_in_model(config, part, name)
    for layer in lora_layers(part):
        for weights in (layer.lora_A, layer.lora_B):
            weights[name].to(layer.get_base_layer().weight.device, torch.float32)
        layer.cast_input_dtype_enabled = False  # autocast casts, and keeps no fp32 copy of the activations


def check_targets(module: nn.Module, targets: Sequence[str]) -> None:
    """Raise a TuningError unless each of `targets` names at least one linear layer of the network.

    peft itself raises no error if only one of them does.
    """
    names = [name for name, layer in module.named_modules() if isinstance(layer, nn.Linear)]
    endings = {re.sub(r"^.*?\d+\.(?=[a-z])", "", name) for name in names} | {n.rsplit(".", 1)[-1] for n in names}
    if not targets:
        known = ", ".join(sorted(endings)[:8])
        raise TuningError(f"tuning.targets: the model has no default layers for LoRA; choose from its own: {known}")
    for target in targets:
        if not any(name == target or name.endswith("." + target) for name in names):
            close = nearest(target, sorted(endings), cutoff=0.4)
            hint = f"did you mean {close!r}?" if close else f"layers end in {', '.join(sorted(endings)[:8])}"
            raise TuningError(f"tuning.targets: no layer of the model is called {target!r}; {hint}")


def reserve_adapter(module: nn.Module, name: str) -> None:
    """Add a frozen adapter `name` with the rank, scale and layers of the policy's adapter, unless it is already there.

    An adapter that is added before the weights are sharded is sharded together with them.
    """
    with torch.random.fork_rng(devices=[]):  # peft draws initial values; they are overwritten
        for layer in lora_layers(module):
            if name not in layer.lora_A:
                rank, alpha = layer.r[POLICY], layer.lora_alpha[POLICY]
                layer.update_layer(name, r=rank, lora_alpha=alpha, config=LoraConfig(r=rank))  # peft's own way
                for weights in (layer.lora_A, layer.lora_B):
                    weights[name].to(layer.get_base_layer().weight.device, torch.float32).requires_grad_(False)
                layer.set_adapter(POLICY)


class LoraBank:
    """A `WeightsBank` whose copies are adapters of one model, so that no second model is in memory.

    A copy of a policy that still equals the base model needs no adapter: the base model takes its place.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module, self._layers = module, lora_layers(module)
        self._base: set[str] = set()  # names that stand for the model without adapter
        self._names: set[str] = set()

    def _weights(self, name: str) -> dict[str, Tensor]:
        return {
            f"{path}.{kind}": getattr(layer, kind)[name].weight
            for path, layer in self.module.named_modules()
            if isinstance(layer, LoraLayer)
            for kind in ("lora_A", "lora_B")
        }

    def _untouched(self) -> bool:
        """Return whether the policy is still the base model. The answer is the same on all processes."""
        return all(float(whole(layer.lora_B[POLICY].weight.detach().norm())) == 0.0 for layer in self._layers)

    @torch.no_grad()
    def save(self, name: str, decay: float = 0.0) -> None:
        if decay == 0.0 and name not in self._names and self._untouched():
            self._base.add(name)
            return
        was_base, fresh = name in self._base, name not in self._names
        self._add(name)
        mine, theirs = self._weights(POLICY), self._weights(name)
        for key, weight in theirs.items():
            weight.copy_(mine[key]) if fresh or decay == 0.0 else weight.lerp_(mine[key], 1 - decay)
            if was_base and key.endswith("lora_B"):  # the base model is any adapter whose B is 0
                weight.mul_(1 - decay)

    def _add(self, name: str) -> None:
        self._base.discard(name)
        self._names.add(name)
        reserve_adapter(self.module, name)

    def __contains__(self, name: str) -> bool:
        return name in self._base or name in self._names

    @contextmanager
    def using(self, name: str) -> Iterator[None]:
        if name not in self:
            raise KeyError(name)
        self._answer_with(None if name in self._base else name)
        try:
            yield
        finally:
            self._answer_with(POLICY)

    def _answer_with(self, name: str | None) -> None:
        """Switch the layers to the adapter `name`, or to the base model if it is None.

        peft's own methods would also freeze the policy's weights. That must not happen, because FSDP2 decides in its
        first forward pass, which may be this one, how gradients are reduced in all later passes.
        """
        for layer in self._layers:
            layer._disable_adapters = name is None
            layer._active_adapter = [name or POLICY]

    @torch.no_grad()
    def adopt(self, name: str) -> None:
        if name in self._base:
            for layer in self._layers:
                layer.lora_B[POLICY].weight.zero_()
            return
        mine, theirs = self._weights(POLICY), self._weights(name)
        for key, weight in mine.items():
            weight.copy_(theirs[key])

    def state_dict(self) -> dict[str, Any]:
        adapters = {name: {k: w.detach() for k, w in self._weights(name).items()} for name in sorted(self._names)}
        return {"base": sorted(self._base), "adapters": adapters}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._base = set(state["base"])
        for name, weights in state["adapters"].items():
            self._add(name)
            for key, weight in self._weights(name).items():
                weight.copy_(weights[key])
