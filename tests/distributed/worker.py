"""What a process of a distributed test does: `python -m distributed.worker FOLDER CASE…`, alone or under torchrun.

A case is `name:iterations`, or `name:iterations/sequence=2/suffix=shared` for a layout. It is run as a user would run
it, goes on from its folder's checkpoint if there is one, and leaves its end weights and what it drew in FOLDER. Layouts
of the same number of processes share a launch, for to import everything takes longer than most cases.
"""

import os
import sys
from pathlib import Path

import torch

from distributed import traps
from distributed.layouts import bytes_held
from sage_grpo.core.callback import Callback
from sage_grpo.core.video_model import whole
from sage_grpo.distributed.processes import launched, leave
from sage_grpo.registry import resolve_model
from sage_grpo.training import build
from sage_grpo.training.trainer import Trainer

CASES = {
    f"{kind}-{mode}": {"kind": kind, "mode": mode}
    for kind in ("shapes", "hunyuan15", "wan")
    for mode in ("lora", "full")
}
LABORATORY = ("shapes", "tones")
HALF = {"precision": "bfloat16", "gradient_checkpointing": True}
CASES |= {"ltx2-lora": {"kind": "ltx2", "mode": "lora"}, "tones-full": {"kind": "tones", "mode": "full"}}  # with sound
CASES |= {"shapes-frugal": {"kind": "shapes", "mode": "full"}, "shapes-early": {"kind": "shapes", "mode": "lora"}}
FRUGAL = {  # all that spares passes, so that processes have unequal work
    "sampling": {"steps": 6, "window": {"size": 2, "range": [0.2, 1], "per": "prompt"}, "order": 2, "tail": 0.5},
    "policy": {"select": 1, "flat_groups": "skip"},
    "kl": {"share": 0.5, "outside_weight": 0},
}
NOISED = {"eta": 0, "shared_initial_noise": False}
EARLY = {  # an adapter that acts at high noise alone
    "sampling": {"steps": 4, "window": {"size": 2, "range": [0, 0.5]}},
    "kl": {"outside_weight": 0},
    "tuning": {"min_sigma": 0.9},
}
OBJECTIVES = {  # by the end of a case's name
    "nft": {"objective_settings": {"decay_rise": 0.3}},  # an old policy that is not the trained one soon
    "awm": {},
    "dpo": {"select": 1},
}
CASES |= {f"shapes-{name}": {"kind": "shapes", "mode": "full"} for name in OBJECTIVES}
CASES |= {"hunyuan15-as-needed": {"kind": "hunyuan15", "mode": "lora", "encode_ahead": False}}
CASES |= {"hunyuan15-nft": {"kind": "hunyuan15", "mode": "lora"}, "wan-awm": {"kind": "wan", "mode": "lora"}}
CASES |= {
    f"hunyuan15-{mode}-compiled": {"kind": "hunyuan15", "mode": mode, "compile": "aot_eager"}
    for mode in ("lora", "full")
}
CASES |= {f"wan-{mode}-bf16": {"kind": "wan", "mode": mode, **HALF} for mode in ("lora", "full")}


def brightness(videos, prompts):
    return [video.float().mean().item() for video in videos]


def unmoved_by_cats(videos, prompts):
    """A group without a signal, on one process or the other."""
    bright = brightness(videos, prompts)
    return [0.0 if "cat" in str(prompt) else value for value, prompt in zip(bright, prompts, strict=True)]


class Drawn(Callback):
    """Prompts and noise of this process, by iteration."""

    def __init__(self):
        self.texts, self.noise, self.scores = [], [], []

    def on_rollout(self, loop, rollouts, scores, valid):
        if loop.objective.renoised:
            self.noise.append(loop.comm.gather(torch.cat([t.x0 for t in rollouts.trajectories])))
        else:
            first, second = zip(*(list(t.points.values())[:2] for t in rollouts.trajectories), strict=True)
            start = loop.comm.gather(torch.cat([point.x for point in first]))
            noise = loop.comm.gather(torch.cat([point.noise for point in second]))
            self.noise += [start, noise]
        self.scores.append(scores)


def real_bytes(module):
    """Of weights that take memory: those on the meta device do not."""
    return sum(p.numel() * p.element_size() for p in module.parameters() if not p.is_meta)


def checkpoint_of(kind, folder):
    path = folder / f"base-{kind}"
    if kind not in LABORATORY and int(os.environ.get("RANK", "0")) == 0 and not (path / "model_index.json").exists():
        # the model libraries take seconds, and shapes need none
        from sage_grpo.models import contract

        contract.make_checkpoint(resolve_model(kind), path)
    return str(path)


def recipe(folder, case, out, iterations, layout):
    tuning = dict(CASES[case])
    kind = tuning.pop("kind")
    model = {"type": kind, "guidance_scale": 3.0}
    if kind not in LABORATORY:
        adapter = resolve_model(kind)
        # at its tiny size Wan has two tokens, and gradients that are rounding alone: Adam makes whole steps of them
        frames, height, width = (9, 32, 32) if kind == "wan" else adapter.tiny_size
        model |= {"path": checkpoint_of(kind, folder), "frames": frames, "height": height, "width": width}
        model |= {"options": dict(adapter.tiny_options)}
    settings = {
        "seed": int(os.environ.get("SEED", "0")),
        "model": model,
        "tuning": {**tuning, "rank": 2, "conditions": str(folder / f"conditions-{launched()}")},
        "parallel": {"processes": launched(), **layout},
        "sampling": {"steps": 4},
        "policy": {"prompts_per_iteration": 2, "num_generations": 4, "batch_size": 2, "num_iterations": 2},
        "kl": {"ref_model_sync_steps": 3, "warmup": 0, "high": 0.1, "outside_weight": 0.5, "outside_share": 0.5},
        "optimizer": {"lr": 1e-5, "ema": 0.9},
        "run": {
            "out": str(out),
            "iterations": iterations,
            "sample_every": 0,
            "trackers": [],
            "save_every": int(os.environ.get("SAVE_EVERY", "1000")),
        },  # and at the end
        "gauge": {"every": 2},
    }
    objective = case.rpartition("-")[2]
    changes = {"frugal": FRUGAL, "early": EARLY}.get(objective, {})
    if objective in OBJECTIVES:
        changes = {"policy": {"objective": objective, "points": 3, **OBJECTIVES[objective]}, "sampling": NOISED}
    for section, values in changes.items():
        settings[section] = settings[section] | values
    return settings


def read(words):
    """A case's name, its iterations, the end of its folder's name, and its layout."""
    named, *settings = words.split("/")
    name, _, iterations = named.partition(":")
    values = dict(setting.split("=") for setting in settings)
    suffix = values.pop("suffix", os.environ.get("SUFFIX", launched()))
    return name, int(iterations or 5), suffix, {key: int(n) for key, n in values.items()}


def run(folder, case, iterations, suffix, layout):
    out = folder / f"{case}-{suffix}"
    drawn = Drawn()
    settings, before, inner = recipe(folder, case, out, iterations, layout), [0], build.shard
    build.shard = lambda model, *rest: (before.append(real_bytes(model.module)), inner(model, *rest))
    trainer = Trainer(
        rewards=[unmoved_by_cats if case.endswith("frugal") else brightness],
        config=settings,
        callbacks=[drawn],
        prompts=["a red circle moving left", "a blue square moving up", "a cat"],
    )
    build.shard = inner
    trainer.train()
    module = trainer.model.module
    trained = {name: whole(p.detach()) for name, p in module.named_parameters() if p.requires_grad}
    held, everything = bytes_held(module), sum(p.numel() * p.element_size() for p in module.parameters())
    copies = trainer.loop.bank.state_dict()
    if trainer.main:
        end = {"weights": trained, "noise": drawn.noise, "scores": drawn.scores, "updates": trainer.loop.updates}
        shares = {"held": held / everything, "before": before[-1] / everything}
        rest = {"copies": sorted(copies), "drift": trainer.gauge.latest}
        torch.save(end | shares | rest, out.with_suffix(".pt"))


def main():
    torch.set_num_threads(1)
    if "TRAPS" in os.environ:
        traps.lay(Path(os.environ["TRAPS"]))
    folder, *cases = sys.argv[1:]
    for case in cases:
        run(Path(folder), *read(case))
    leave()


if __name__ == "__main__":
    main()
