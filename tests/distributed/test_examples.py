"""The files for launchers name recipes, settings and options that exist."""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
import yaml
from torch.distributed.run import get_args_parser

from sage_grpo.config import load_recipe

EXAMPLES = Path(__file__).parents[2] / "examples"
SBATCH = EXAMPLES / "slurm" / "train.sbatch"
STUBS = {
    "scontrol": 'echo "$@" >> "$CALLS"; [ "$1" = show ] && printf "node-1\\nnode-2\\n"; true',
    "srun": 'shift; "$@"& torchrun=$!; trap "kill -TERM $torchrun" TERM; wait $torchrun; wait $torchrun',
    # as the real one: it ends some time after SIGTERM, and with 1
    "torchrun": 'printf "%s\\n" "$@" > "$TORCHRUN"; trap "sleep 0.3; touch \\"$TORCHRUN.saved\\"; exit 1" TERM; '
    'while [ -e "$TORCHRUN" ]; do sleep 0.05; done',
}


def launched(arguments):
    """What torchrun and the recipe make of a command."""
    options = get_args_parser().parse_args(arguments)
    assert options.module
    assert options.training_script == "sage_grpo"
    command, recipe, *overrides = options.training_script_args
    assert command == "train"
    return options, load_recipe(recipe, overrides)


def assert_fits(config, processes, shared):
    assert config.parallel.processes == processes
    assert config.rollouts % (processes * config.policy.batch_size) == 0
    assert Path(config.run.out).is_relative_to(shared)
    assert Path(config.tuning.conditions).is_relative_to(shared)
    assert config.run.hang_minutes > 0


def test_pytorchjob():
    job = yaml.safe_load((EXAMPLES / "kubernetes" / "pytorchjob.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v1", "PyTorchJob")
    worker, elastic = job["spec"]["pytorchReplicaSpecs"]["Worker"], job["spec"]["elasticPolicy"]
    assert worker["replicas"] == elastic["minReplicas"] == elastic["maxReplicas"]
    pod = worker["template"]["spec"]
    (container,) = pod["containers"]
    assert container["name"] == "pytorch"
    launcher, *arguments = container["command"]
    assert launcher == "torchrun"
    options, config = launched(arguments)
    assert options.nproc_per_node == job["spec"]["nprocPerNode"]
    assert_fits(config, worker["replicas"] * int(options.nproc_per_node), "/shared")
    variables = {entry["name"]: entry["value"] for entry in container["env"]}
    assert 30 < int(variables["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"]) < pod["terminationGracePeriodSeconds"]
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}


@pytest.mark.slow
@pytest.mark.parametrize("asked", [False, True], ids=["runs to its end", "its time is over"])
def test_sbatch(tmp_path, asked):
    """The script itself, between stand-ins for SLURM and torchrun."""
    for name, body in STUBS.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    calls, torchrun = tmp_path / "calls", tmp_path / "arguments"
    settings = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "CALLS": str(calls),
        "TORCHRUN": str(torchrun),
        "SHARED": "/shared",
        "SLURM_JOB_NODELIST": "node-[1-2]",
        "SLURM_NNODES": "2",
        "SLURM_JOB_ID": "7",
    }
    script = subprocess.Popen([shutil.which("bash"), str(SBATCH)], env=settings)
    deadline = time.monotonic() + 30
    while not (torchrun.exists() and len(torchrun.read_text().splitlines()) > 10) and time.monotonic() < deadline:
        time.sleep(0.05)
    options, config = launched(torchrun.read_text().splitlines())
    assert (options.nnodes, options.rdzv_endpoint, options.rdzv_id) == ("2", "node-1:29500", "7-0")
    assert_fits(config, 16, "/shared")
    if asked:
        time.sleep(0.2)  # until the stand-in listens
        script.send_signal(signal.SIGTERM)
    else:
        torchrun.unlink()
    assert script.wait(timeout=30) == 0
    assert ("requeue 7" in calls.read_text()) == asked
    assert (tmp_path / "arguments.saved").exists() == asked  # it was not queued again before all was saved
