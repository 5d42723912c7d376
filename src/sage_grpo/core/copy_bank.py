"""A bank of weights that keeps named copies of the trainable weights as plain tensors."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

Fill = Callable[[Mapping[str, nn.Parameter]], None]


class CopyBank:
    """A `WeightsBank` of plain copies of the trainable parameters.

    Args:
        module: The network. Its parameters with `requires_grad` are copied.
        device: Device on which copies are kept; None keeps each copy on the device of its parameter.
        lazy_copies: Copies that this bank does not keep in memory, by name. Each is a function that gets the trainable
            parameters by name and overwrites their values, whenever the copy is used. `state_dict` leaves these copies
            out.
    """

    def __init__(
        self, module: nn.Module, device: torch.device | None = None, lazy_copies: Mapping[str, Fill] | None = None
    ) -> None:
        self._lazy_copies = dict(lazy_copies or {})
        self._parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self._copies: dict[str, dict[str, Tensor]] = {}
        self._places = {name: device or p.device for name, p in self._parameters.items()}

    @torch.no_grad()
    def save(self, name: str, decay: float = 0.0) -> None:
        if decay and name in self._copies:
            for key, copy in self._copies[name].items():
                copy.lerp_(self._parameters[key].to(copy.device), 1 - decay)
        else:
            self._copies[name] = self._kept(self._parameters)

    def __contains__(self, name: str) -> bool:
        return name in self._copies or name in self._lazy_copies

    @torch.no_grad()
    def adopt(self, name: str) -> None:
        for key, copy in self._copies[name].items():
            self._parameters[key].copy_(copy)

    @contextmanager
    def using(self, name: str) -> Iterator[None]:
        """Replace the module's weights by copy `name` inside the block, and restore them afterwards.

        A copy in memory changes places with the weights, one parameter at a time. For a lazy copy, the weights are set
        aside in a clone.
        """
        if name in self._copies:
            self._exchange(name)
            try:
                yield
            finally:
                self._exchange(name)
            return
        aside = self._kept(self._parameters)
        try:
            with torch.no_grad():
                self._lazy_copies[name](self._parameters)
            yield
        finally:
            with torch.no_grad():
                for key, value in aside.items():
                    self._parameters[key].copy_(value)

    @torch.no_grad()
    def _exchange(self, name: str) -> None:
        for key, copy in self._copies[name].items():
            live = self._parameters[key].detach().clone()
            self._parameters[key].copy_(copy)
            copy.copy_(live)

    def state_dict(self) -> dict[str, Any]:
        return {name: dict(copy) for name, copy in self._copies.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._copies = {name: self._kept(copy) for name, copy in state.items()}

    def _kept(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return clones of the tensors by parameter name, on the devices where this bank keeps its copies."""
        return {key: x.detach().to(self._places[key], copy=True) for key, x in values.items()}
