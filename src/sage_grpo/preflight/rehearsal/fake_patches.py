"""Patches of torch and of this project's checks for tensors without values.

Use them only in a process that does nothing else, because they change torch.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.optim.optimizer import register_optimizer_step_post_hook

from sage_grpo.core import checks, loop
from sage_grpo.core.checks import BackwardVelocity, ReplayError, check_direction, check_replay
from sage_grpo.distributed.fake_group import FakeStreams, sharding_modules
from sage_grpo.math.objective_contract import fault_at_old_policy
from sage_grpo.preflight.rehearsal.fake_device import DEVICE


class Patch(NamedTuple):
    owner: Any
    name: str
    replacement: Any
    why: str


def _answer(value: Any) -> Callable[..., Any]:
    return lambda *args, **named: value


def _apply(self: nn.Module, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
    """Replace `nn.Module._apply`: put new parameters in place of the old ones."""
    for child in self.children() if recurse else ():
        child._apply(fn)  # type: ignore[no-untyped-call]
    for name, parameter in self._parameters.items():
        if parameter is not None:
            with torch.no_grad():
                moved = fn(parameter)
            if moved is not parameter:
                self._parameters[name] = nn.Parameter(moved, requires_grad=parameter.requires_grad)
    for name, buffer in self._buffers.items():
        if buffer is not None:
            self._buffers[name] = fn(buffer)
    return self


def _constructor(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a `torch.tensor` that makes tensors on the host first, then moves them to the device."""

    def tensor(data: Any, *, device: Any = None, requires_grad: bool = False, **rest: Any) -> Tensor:
        value = make(data, **rest)
        return (value if device is None else value.to(device)).requires_grad_(requires_grad)

    return tensor


def _new_tensor(self: Tensor, data: Any, *, dtype: Any = None, device: Any = None, **rest: Any) -> Tensor:
    return torch.tensor(data, dtype=dtype or self.dtype, device=device or self.device, **rest)


def _by_tensor(ask: Callable[..., Any]) -> Callable[..., Any]:
    """Return an indexing function that turns lists in the index into tensors.

    torch itself would copy lists to the device without asking any mode.
    """

    def index(self: Tensor, places: Any, *value: Any) -> Any:
        return ask(self, _tensors(places), *value)

    return index


def _tensors(places: Any) -> Any:
    if isinstance(places, list):
        return torch.tensor(places)
    return tuple(map(_tensors, places)) if isinstance(places, tuple) else places


def _address(ask: Callable[[Any], int]) -> Callable[[Any], int]:
    """Return a `data_ptr` that also works for a storage or tensor without memory. Views share its number."""

    def data_ptr(self: Any) -> int:
        fake = isinstance(self, FakeTensor) or self.device.type == "meta"
        return int((self.untyped_storage() if isinstance(self, Tensor) else self)._cdata) if fake else ask(self)

    return data_ptr


def torch_patches() -> list[Patch]:
    cuda, device = torch.cuda, torch.accelerator
    handle = FakeStreams()
    return [
        Patch(device, "current_accelerator", _answer(DEVICE), "a CPU build knows no accelerator"),
        Patch(device, "current_stream", handle.current_stream, "FSDP2 makes it wait for an event of those streams"),
        Patch(device, "set_device_index", _answer(None), "there is one device, and it is chosen"),
        Patch(device, "max_memory_allocated", _answer(0), "a run logs the peak of its memory; here nothing is held"),
        Patch(device, "reset_peak_memory_stats", _answer(None), "and begins to measure anew"),
        Patch(cuda, "_lazy_init", _answer(None), "there is no driver to start"),
        Patch(cuda, "is_available", _answer(True), "libraries ask before they name a device"),
        Patch(cuda, "is_initialized", _answer(True), "the process group asks before it picks a device"),
        Patch(cuda, "device_count", _answer(1), "a mesh of devices wants to know how many there are"),
        Patch(cuda, "current_device", _answer(0), "the same mesh asks which one is chosen"),
        Patch(cuda, "set_device", _answer(None), "the same mesh chooses one"),
        Patch(cuda, "get_device_name", _answer("none (rehearsed without values)"), "a run writes down its devices"),
        Patch(cuda, "get_device_capability", _answer((9, 0)), "kernels are chosen by it; here none run"),
        Patch(cuda, "is_bf16_supported", _answer(True), "autocast refuses bfloat16 without it"),
        Patch(cuda, "manual_seed_all", _answer(None), "there are no generators of random numbers on the device"),
        Patch(cuda, "get_rng_state", lambda device: torch.get_rng_state(), "a checkpoint keeps their state"),
        Patch(cuda, "set_rng_state", _answer(None), "and a resume gives it back"),
        Patch(cuda.amp.common, "amp_definitely_not_available", _answer(False), "autocast switches itself off"),
        Patch(nn.Module, "_apply", _apply, "torch swaps a fake parameter in place, which one with a gradient forbids"),
        Patch(torch, "tensor", _constructor(torch.tensor), "it copies to the device without asking any mode"),
        Patch(Tensor, "new_tensor", _new_tensor, "as torch.tensor does"),
        Patch(Tensor, "__getitem__", _by_tensor(Tensor.__getitem__), "a list as an index, too"),
        Patch(Tensor, "__setitem__", _by_tensor(Tensor.__setitem__), "and to write to"),
        Patch(torch.UntypedStorage, "data_ptr", _address(torch.UntypedStorage.data_ptr), "writers look for sharing"),
        Patch(Tensor, "data_ptr", _address(Tensor.data_ptr), "the same writers compare it with the storage's"),
        Patch(
            FakeTensor, "tolist", lambda x: x.cpu().tolist(), "torch asks the device for each number, on one axis only"
        ),
        Patch(FakeTensorMode, "avoid_device_init", True, "with a device `available` torch would start its driver"),
        *(
            Patch(module, "_get_device_handle", _answer(handle), "FSDP2 asks torch.cuda for streams and events")
            for module in sharding_modules()
        ),
    ]


class Progress:
    """A record of whether an optimizer has made a step. LoRA adapters are 0 until the first step, and not after."""

    stepped = False

    def note(self, *details: Any) -> None:
        self.stepped = True


def project_patches(progress: Progress) -> list[Patch]:
    """Return patches of this project's checks that would fail on made-up values.

    The checks still run, but their results are replaced by those of a sound run.
    """

    def without_values(*args: Any, **named: Any) -> float:
        with suppress(ReplayError):  # made-up values agree with nothing
            check_replay(*args, **named)
        return 0.0

    def either_way(*args: Any) -> float:
        with suppress(BackwardVelocity):
            check_direction(*args)
        return 1.0

    def no_fault(*args: Any) -> None:
        fault_at_old_policy(*args)

    patches = [
        Patch(loop, "check_replay", without_values, "there are no velocities to compare"),
        Patch(loop, "check_direction", either_way, "made-up velocities point anywhere"),
        Patch(checks, "fault_at_old_policy", no_fault, "made-up gradients point anywhere"),
    ]
    try:
        from sage_grpo.weights.lora_bank import LoraBank  # noqa: PLC0415 - peft is an extra
    except ModuleNotFoundError:
        return patches
    ask = LoraBank._untouched

    def untouched(self: LoraBank) -> bool:
        ask(self)
        return not progress.stepped

    return [*patches, Patch(LoraBank, "_untouched", untouched, "adapters are 0 until the first step, and not after")]


@contextmanager
def pretended_cuda() -> Iterator[None]:
    """Apply all patches inside the block, so that torch believes in a CUDA device."""
    progress = Progress()
    hook = register_optimizer_step_post_hook(progress.note)
    with ExitStack() as stack:
        stack.callback(hook.remove)
        for patch in [*torch_patches(), *project_patches(progress)]:
            stack.enter_context(mock.patch.object(patch.owner, patch.name, patch.replacement))
        yield
