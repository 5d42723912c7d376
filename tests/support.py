"""Small stand-ins that many tests share."""

import os

import torch

from gaussian_model import GaussianModel
from sage_grpo.config import AlgorithmConfig, KLConfig, PolicyConfig, SamplingConfig
from sage_grpo.core import loop as core
from sage_grpo.core.callback import Callback
from sage_grpo.core.comm import SingleProcess
from sage_grpo.core.loop import Loop
from sage_grpo.core.protocols import Prompt
from sage_grpo.core.reward import Reward
from sage_grpo.core.scores import Scores
from sage_grpo.math.objectives import OBJECTIVES


class FunctionReward(Reward):
    """A reward from a function videos → (B,) values; non-finite means failed."""

    names = ("score",)

    def __init__(self, function):
        self.function = function

    def score(self, videos, prompts):
        values = torch.as_tensor(self.function(videos), dtype=torch.float64)[:, None]
        return Scores(values, values.isfinite())


def mean_brightness(videos):
    return videos.double().flatten(1).mean(1)


def numbered_prompts(start, count):
    return [Prompt(f"prompt {i}") for i in range(start, start + count)]


class Recorder(Callback):
    def __init__(self):
        self.rollouts, self.scores, self.valid, self.updates, self.metrics = [], [], [], [], []

    def on_rollout(self, loop, rollouts, scores, valid):
        self.rollouts.append(rollouts)
        self.scores.append(scores)
        self.valid.append(valid)

    def on_update(self, loop, result):
        self.updates.append(result)

    def on_iteration(self, loop, metrics):
        self.metrics.append(metrics)


def make_config(*, seed=0, sampling=None, policy=None, kl=None):
    """A quick setting; each part can be overridden key by key."""
    return AlgorithmConfig(
        seed=seed,
        sampling=SamplingConfig(**{"eta": 0.7, "steps": 6, "shift": 3.0} | (sampling or {})),
        policy=PolicyConfig(**{"prompts_per_iteration": 2, "batch_size": 8, "clip": 0.1} | (policy or {})),
        kl=KLConfig(**{"warmup": 0, "high": 0.1} | (kl or {})),
    )


def objective_config(name, *, seed=0, policy=None, sampling=None, kl=None):
    """The same for any objective, with what each of them needs."""
    cls = OBJECTIVES[name]
    policy = {"objective": name, "clip": None} | (policy or {})
    if cls.renoised:
        policy = {"points": 3} | policy
        sampling = {"eta": 0, "shared_initial_noise": False} | (sampling or {})
    if cls.paired:
        policy = {"select": 1} | policy
    return make_config(seed=seed, policy=policy, sampling=sampling, kl=kl)


def make_loop(config=None, *, model=None, reward=mean_brightness, prompts=numbered_prompts, **extra):
    model = model or GaussianModel()
    recorder = Recorder()
    optimizer = torch.optim.AdamW([p for p in model.module.parameters() if p.requires_grad], lr=1e-3)
    callbacks = [recorder, *extra.pop("callbacks", ())]
    reward = FunctionReward(reward) if callable(reward) else reward
    loop = Loop(model, reward, prompts, config or make_config(), optimizer, callbacks=callbacks, **extra)
    return loop, recorder


def weights(loop):
    return torch.cat([p.detach().double().flatten() for p in loop.model.module.parameters()])


def perturbed(model, size=0.05):
    """The correction starts at zero; make the network matter."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.module.parameters():
            p.add_(size * torch.randn(p.shape, generator=generator).to(p.dtype))
    return model


class Rank(SingleProcess):
    """One of several processes that never talk."""

    def __init__(self, replica, num_replicas, sp_rank=0, sp_size=1):
        self.replica, self.num_replicas, self.sp_rank, self.sp_size = replica, num_replicas, sp_rank, sp_size


class Trap:
    """Whoever reads its pickle makes a folder: code has run that came from a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def train(loop, paths, advantage, used):
    """Train on a rollout with these advantages, as `Loop.iterate` does with its own."""
    for batches, step in loop._updates(*loop.prepare(paths, advantage, used)):
        parts = {"optimizer": loop.optimizer, "bank": loop.bank, "comm": loop.comm}
        loop._after_update(core.update(loop.model, batches, step, loop.config, **parts))
