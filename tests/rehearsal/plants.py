"""Faults of the kind that only a GPU would show, each put into the program for a while. `planted` marks their lines."""

from contextlib import contextmanager, nullcontext
from unittest import mock

import torch


@contextmanager
def rollout():
    """The velocity goes to the host and is used there, with latents of the device."""
    import sage_grpo.core.rollout as core

    ask = core.velocity_at

    def velocity_at(*asked):
        return ask(*asked).cpu()  # planted: rollout

    with mock.patch.object(core, "velocity_at", velocity_at):
        yield


@contextmanager
def update():
    """A tensor made without its device meets those of the loss."""
    import sage_grpo.core.update as core

    loss = core.sage_loss

    def sage_loss(surrogate, *rest):
        return loss(surrogate, *rest) + torch.zeros(len(surrogate))  # planted: update

    with mock.patch.object(core, "sage_loss", sage_loss):
        yield


@contextmanager
def resume():
    """Copies of the weights stay where the checkpoint was read."""
    from sage_grpo.core.copy_bank import CopyBank

    def load_state_dict(self, state):
        for name, copy in state.items():
            self._copies[name] = {key: x.clone() for key, x in copy.items()}  # planted: resume

    with mock.patch.object(CopyBank, "load_state_dict", load_state_dict):
        yield


@contextmanager
def optimizer():
    """The moments of one parameter stay on the host."""
    from torch.optim import AdamW

    load = AdamW.load_state_dict

    def load_state_dict(self, state):
        load(self, state)
        moments = next(iter(self.state.values()))
        moments["exp_avg"] = torch.zeros(moments["exp_avg"].shape)  # planted: optimizer

    with mock.patch.object(AdamW, "load_state_dict", load_state_dict):
        yield


@contextmanager
def backward():
    """A gradient is looked at on the host, in the thread of torch that runs the backward pass."""
    import sage_grpo.core.update as core

    ask = core.velocities

    def hook(gradient):
        return gradient * gradient.cpu()  # planted: backward

    def velocities(*asked):
        found = ask(*asked)
        for v in found:
            if v.requires_grad:
                v.register_hook(hook)
        return found

    with mock.patch.object(core, "velocities", velocities):
        yield


PLANTS = {
    "": nullcontext,
    "rollout": rollout,
    "update": update,
    "resume": resume,
    "optimizer": optimizer,
    "backward": backward,
}
