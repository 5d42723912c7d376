"""Kill and restart: what is saved is all that shapes the future."""

import signal
import subprocess
import sys
from copy import deepcopy
from pathlib import Path

import pytest
import torch

from support import make_config, make_loop, mean_brightness, weights
from sweeps import further

RUN = """
import os, signal, sys, torch
from pathlib import Path
from support import make_config, make_loop, objective_config, weights
from sage_grpo.core.callback import Callback

folder, until, kill_at, objective = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]

class Save(Callback):
    def on_iteration(self, loop, metrics):
        torch.save(loop.state_dict(), folder / "new")
        os.replace(folder / "new", folder / "state.pt")
    def on_update(self, loop, result):
        if loop.updates == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)  # in the middle of an iteration, after its weights changed

policy = {"num_iterations": 2, "timestep_fraction": 0.6, "select": 1, "flat_groups": "skip", "batch_size": 2}
kl = {"anchor": "moving", "ref_model_sync_steps": 7, "share": 0.5, "low": 1e-3, "high": 1.0, "warmup": 5,
      "feedback": "lagrangian", "target": 1e-7}
outside = {"outside_weight": 0.5, "outside_share": 0.3}
if objective == "grpo":
    window = {"size": 3, "per": "prompt", "range": (0.2, 1)}
    config = make_config(policy=policy, kl=kl | outside, sampling={"window": window, "order": 2, "tail": 0.5})
else:
    old = {"objective_settings": {"decay_rise": 0.1}} if objective == "nft" else {}
    config = objective_config(objective, policy=policy | old, kl=kl | {"decay": 0.5}, sampling={"order": 2})
loop, seen = make_loop(config, callbacks=[Save()])
if (folder / "state.pt").exists():
    loop.load_state_dict(torch.load(folder / "state.pt", weights_only=True))
loop.run(until)
torch.save({"weights": weights(loop), "kl_weight": loop.kl_weight.value, "updates": loop.updates,
            "recent": list(loop.kl_weight.recent)}, folder / "end.pt")
"""


def run(folder: Path, iterations: int, kill_at: int = -1, objective: str = "grpo") -> int:
    arguments = [sys.executable, "-c", RUN, str(folder), str(iterations), str(kill_at), objective]
    return subprocess.run(arguments, cwd=Path(__file__).parents[1], check=False).returncode


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """The run that nobody kills, of each objective that is asked for."""
    made = {}

    def of(objective):
        if objective not in made:
            made[objective] = tmp_path_factory.mktemp(objective)
            assert run(made[objective], 16, objective=objective) == 0
        return made[objective]

    return of


@pytest.mark.slow
@pytest.mark.parametrize(("objective", "kill_at"), [("grpo", 9), further("grpo", 10), ("nft", 10), further("awm", 9)])
def test_killed_and_restarted_is_bit_equal(tmp_path, straight, objective, kill_at):
    """SIGKILL at update 9 or 10; the restarted run makes more than 20 updates and ends bit-equal."""
    broken = tmp_path / "broken"
    broken.mkdir()
    assert run(broken, 16, kill_at, objective) == -signal.SIGKILL
    assert not (broken / "end.pt").exists()
    assert run(broken, 16, objective=objective) == 0
    ends = (straight(objective), broken)
    expected, resumed = (torch.load(folder / "end.pt", weights_only=True) for folder in ends)
    assert expected["updates"] == 32
    assert torch.equal(expected.pop("weights"), resumed.pop("weights"))
    assert expected == resumed


@pytest.mark.parametrize("lost", ["optimizer", "bank", "kl_weight", "iteration", "torch_rng"])
def test_every_part_of_the_state_matters(lost):
    """Forget one part of the state and the future is another: none of it is ballast."""

    def undecided(videos):
        return mean_brightness(videos) + torch.rand(len(videos))  # a reward that draws its own numbers

    def fresh():
        kl = {"ref_model_sync_steps": 4, "low": 0.01, "high": 1.0, "warmup": 8}
        return make_loop(make_config(kl=kl), reward=undecided)[0]

    def resumed(state):
        loop = fresh()
        loop.load_state_dict(deepcopy(state))
        loop.run(state["iteration"] + 4)
        return weights(loop)

    first = fresh()
    first.run(6)
    state = deepcopy(first.state_dict())
    first.run(10)
    assert torch.equal(resumed(state), weights(first))

    forgetful = fresh()
    forgetful.bank.save("anchor")
    assert not torch.equal(resumed(state | {lost: forgetful.state_dict()[lost]}), weights(first))
