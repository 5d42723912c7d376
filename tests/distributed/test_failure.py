"""An exception on one process ends all of them within ten seconds, whoever started them and wherever it came."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from distributed.launcher import environment
from distributed.worker import brightness, recipe
from sage_grpo.core.loop import Loop
from sage_grpo.distributed.processes import leave
from sage_grpo.training.callbacks import Samples, Save
from sage_grpo.training.trainer import Trainer
from sweeps import further

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

LIMIT = 10.0  # seconds
PLACES = {
    "rollout": (Loop, "rollout"),
    "scoring": (Loop, "score"),
    "update": (Loop, "_after_update"),
    "save": (Save, "write"),
    "sample": (Samples, "write"),
}


class Planted(Exception):
    pass


def plant(place, folder):
    """The second time that this process comes to the place, it fails."""
    owner, name = PLACES[place]
    inner, calls = getattr(owner, name), []

    def fails(*inputs):
        calls.append(name)
        if len(calls) == 2:
            (folder / "raised").write_text(str(time.time()))
            raise Planted(f"in {place}")
        return inner(*inputs)

    setattr(owner, name, fails)


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def without_launcher(*module):
    """As a scheduler starts them that ends nobody: two programs that know of each other."""
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1"}
    for rank in range(2):
        yield [sys.executable, "-m", *module], shared | {"RANK": str(rank), "LOCAL_RANK": "0"}


def on_two_nodes(*module):
    """Two agents of torchrun, each with a process."""
    meeting = [f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--rdzv-backend=c10d", "--local-addr=127.0.0.1"]
    options = ["--nnodes=2", "--nproc-per-node=1", "--max-restarts=0", *meeting]
    for _ in range(2):
        command = [sys.executable, "-m", "torch.distributed.run", *options, "-m", *module]
        yield command, {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


@pytest.mark.parametrize(
    ("start", "place", "rank"),
    [
        (without_launcher, "scoring", 1),
        further(on_two_nodes, "rollout", 1),
        further(on_two_nodes, "scoring", 0),
        further(on_two_nodes, "update", 1),
        further(on_two_nodes, "save", 0),
        further(on_two_nodes, "sample", 1),
    ],
)
def test_one_fails_and_all_end(tmp_path, start, place, rank):
    module = ["distributed.test_failure", str(tmp_path), place, str(rank)]
    files = [(tmp_path / f"stderr-{i}").open("w+") for i in range(2)]
    programs = [
        subprocess.Popen(command, env=environment(**more), stdout=subprocess.DEVNULL, stderr=file)
        for (command, more), file in zip(start(*module), files, strict=True)
    ]
    codes = [program.wait(timeout=240) for program in programs]
    took = time.time() - float((tmp_path / "raised").read_text())
    print(f"{start.__name__} {place}: all ended {took:.1f} s after rank {rank} failed")
    assert codes == [1, 1]
    assert took < LIMIT
    said = "".join((tmp_path / f"stderr-{i}").read_text() for i in range(2))
    (line,) = [line for line in said.splitlines() if line.startswith("error: rank ")]
    assert f"error: rank {rank} (process " in line
    assert f"failed: Planted: in {place}; traceback in {tmp_path}" in line
    assert line.endswith(f"rank {1 - rank} ends, for it would wait")
    assert "in fails" in said  # the traceback, by the rank that failed
    # the other one may have noticed by itself that its neighbour is gone: its error comes second
    file, *_ = sorted((tmp_path / "run" / "hang").glob("*-errors/*"), key=lambda path: path.stat().st_mtime)
    assert file.name == f"rank-{rank:04d}.txt"
    assert "in fails" in file.read_text()
    assert not [pid for pid in map(int, (tmp_path / "ids").read_text().split()) if alive(pid)]


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def main(folder, place, rank):
    with (folder / "ids").open("a") as file:
        file.write(f"{os.getpid()}\n")
    if int(os.environ["RANK"]) == int(rank):
        plant(place, folder)
    values = recipe(folder, "shapes-full", folder / "run", 6, {})
    values |= {"run": values["run"] | {"save_every": 1, "sample_every": 1, "samples": 2}}
    Trainer(rewards=[brightness], config=values, prompts=["a red circle moving left", "a cat"]).train()
    leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
