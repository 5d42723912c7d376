"""Plans held against real processes: `python -m plan.reality FOLDER [CASE…]` prints a table."""

import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from distributed.launcher import environment, torchrun
from plan.cases import CASES, recipe
from sage_grpo.config import load_recipe
from sage_grpo.preflight.plan.counts import count
from sage_grpo.preflight.plan.memory import memory, model_states
from sage_grpo.preflight.plan.probe import decoding, probe
from sage_grpo.training import build

MEASURED = ("rollout", "decode", "train")


def measure(folder, names):
    """Real figures by case, a start of processes for each number of them."""
    starts = defaultdict(list)
    for name in names:
        recipe(name, folder)
        starts[CASES[name]["processes"]].append(name)
    for processes, together in starts.items():
        command = torchrun(processes, "plan.worker", folder, *together)
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
    return {name: json.loads((folder / f"{name}.json").read_text()) for name in names}


def planned(folder, name):
    config = load_recipe(recipe(name, folder))
    one_sided = config.model.guidance_gradient == "conditional"
    found = memory(
        build.outline_model(config), config, probe(config), model_states(config), decoding(config), gpu=False
    ).phases
    phases = found | {"train": max(found["train"], found["step"]), "rollout": max(found["rollout"], found["score"])}
    return count(config, True, one_sided).forward * config.parallel.sequence, phases


def main():
    folder = Path(sys.argv[1])
    names = sys.argv[2:] or list(CASES)
    real = measure(folder, names)
    for name in names:
        passes, phases = planned(folder, name)
        told = [f"passes {passes:.0f}/{sum(rank['passes'] for rank in real[name])}"]
        for phase in MEASURED:
            most = max(rank["peaks"][phase] for rank in real[name])
            told.append(f"{phase} {phases[phase] / 1e6:.2f}/{most / 1e6:.2f} MB ×{phases[phase] / most:.3f}")
        print(f"{name:45s} {'  '.join(told)}", flush=True)


if __name__ == "__main__":
    main()
