"""The files for launchers start the recipes that they are given, on as many nodes as there are."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from string import Template

import pytest
import yaml
from torch.distributed.run import get_args_parser

from distributed.launcher import environment
from sage_grpo.config import load_recipe

EXAMPLES = Path(__file__).parents[2] / "examples"
SBATCH = EXAMPLES / "slurm" / "train.sbatch"
JOB = (EXAMPLES / "kubernetes" / "pytorchjob.yaml").read_text()
STUBS = {
    "scontrol": 'echo "$@" >> "$CALLS"; [ "$1" = show ] && printf "node-1\\nnode-2\\n"; true',
    "srun": 'shift; "$@"& torchrun=$!; trap "kill -TERM $torchrun" TERM; wait $torchrun; wait $torchrun',
    # as the real one: it ends some time after SIGTERM, and with 1
    "torchrun": 'printf "%s\\n" "$@" > "$TORCHRUN"; trap "sleep 0.3; touch \\"$TORCHRUN.saved\\"; exit 1" TERM; '
    'while [ -e "$TORCHRUN" ]; do sleep 0.05; done',
}
TWO_NODES = {
    "scontrol": '[ "$1" = show ] && printf "localhost\\n"; true',
    "srun": 'shift; "$@" & first=$!; "$@" & second=$!; wait $first && wait $second',
    "torchrun": f'exec {sys.executable} -m torch.distributed.run "$@"',
}
# what each recipe is started with in the documentation, by its number of nodes
STARTED = [("hunyuan15-64gpu", 8, []), ("hunyuan15-8gpu-lora", 2, ["policy.prompts_per_iteration=8"])]
TOY = ["policy.prompts_per_iteration=4", "policy.batch_size=16", "run.iterations=1", "run.sample_every=0"]


def launched(arguments):
    """Return torchrun's options and the recipe of a command."""
    options = get_args_parser().parse_args(arguments)
    assert options.module
    assert options.training_script == "sage_grpo"
    command, recipe, *overrides = options.training_script_args
    assert command == "train"
    return options, load_recipe(recipe, overrides)


def assert_fits(config, processes):
    assert config.parallel.processes == processes
    assert config.rollouts % (config.parallel.replicas * config.policy.batch_size) == 0
    assert config.run.hang_minutes > 0
    assert not Path(config.run.out).is_absolute()  # below the shared folder, in which all commands run


def free_port():
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return listener.getsockname()[1]


def job(recipe, nodes, processes):
    """Return the PyTorchJob as kubectl gets it, and its container."""
    names = {"NODES": nodes, "GPUS": processes, "RECIPE": recipe}
    found = yaml.safe_load(Template(JOB).substitute({name: str(value) for name, value in names.items()}))
    (container,) = found["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    return found, container


@pytest.mark.parametrize(("recipe", "nodes", "overrides"), STARTED)
def test_pytorchjob(recipe, nodes, overrides):
    found, container = job(recipe, nodes, 8 * nodes)
    assert (found["apiVersion"], found["kind"]) == ("kubeflow.org/v1", "PyTorchJob")
    worker, elastic = found["spec"]["pytorchReplicaSpecs"]["Worker"], found["spec"]["elasticPolicy"]
    assert worker["replicas"] == elastic["minReplicas"] == elastic["maxReplicas"] == nodes
    pod = worker["template"]["spec"]
    assert container["name"] == "pytorch"
    launcher, *arguments = container["command"]
    assert launcher == "torchrun"
    options, config = launched([*arguments, *overrides])
    assert options.nproc_per_node == found["spec"]["nprocPerNode"]
    assert_fits(config, worker["replicas"] * int(options.nproc_per_node))
    assert container["workingDir"] == "/shared"
    variables = {entry["name"]: entry["value"] for entry in container["env"]}
    assert 30 < int(variables["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"]) < pod["terminationGracePeriodSeconds"]
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}


def stand_ins(folder, stubs):
    for name, body in stubs.items():
        (folder / name).write_text(f"#!/bin/bash\n{body}\n")
        (folder / name).chmod(0o755)


def slurm(folder, **more):
    """Return the environment of a job script, with stand-ins for SLURM first on the path."""
    names = {"SHARED": str(folder), "SLURM_JOB_NODELIST": "node-[1-2]", "SLURM_NNODES": "2", "SLURM_JOB_ID": "7"}
    return names | {"PATH": f"{folder}:{os.environ['PATH']}"} | more


@pytest.mark.slow
@pytest.mark.parametrize("asked", [False, True], ids=["runs to its end", "its time is over"])
def test_sbatch(tmp_path, asked):
    """The script itself, between stand-ins for SLURM and torchrun."""
    stand_ins(tmp_path, STUBS)
    calls, torchrun = tmp_path / "calls", tmp_path / "arguments"
    settings = slurm(tmp_path, CALLS=str(calls), TORCHRUN=str(torchrun))
    recipe, _, overrides = STARTED[1]
    script = subprocess.Popen([shutil.which("bash"), str(SBATCH), recipe, *overrides], env=settings)
    deadline = time.monotonic() + 30
    while not (torchrun.exists() and len(torchrun.read_text().splitlines()) > 10) and time.monotonic() < deadline:
        time.sleep(0.05)
    options, config = launched(torchrun.read_text().splitlines())
    assert (options.nnodes, options.rdzv_endpoint, options.rdzv_id) == ("2", "node-1:29500", "7-0")
    assert_fits(config, 16)
    if asked:
        time.sleep(0.2)  # until the stand-in listens
        script.send_signal(signal.SIGTERM)
    else:
        torchrun.unlink()
    assert script.wait(timeout=30) == 0
    assert ("requeue 7" in calls.read_text()) == asked
    assert (tmp_path / "arguments.saved").exists() == asked  # it was not queued again before all was saved


def test_sbatch_without_a_recipe(tmp_path):
    said = subprocess.run(
        [shutil.which("bash"), str(SBATCH)], env=slurm(tmp_path), capture_output=True, text=True, check=False
    )
    assert said.returncode == 2
    assert "name a recipe" in said.stderr


def assert_trained(folder):
    """Both processes took part in one iteration, and one of them wrote it down."""
    (row,) = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert row["step"] == 1
    assert len(list((folder / "checkpoints").rglob("*.distcp"))) == 2


@pytest.mark.slow
@pytest.mark.real_start
def test_sbatch_on_two_nodes(tmp_path):
    """Two real torchrun agents of one process each meet and train, in the folder that both see."""
    stand_ins(tmp_path, TWO_NODES)
    settings = environment(**slurm(tmp_path, SLURM_GPUS_PER_NODE="toy:1", PORT=str(free_port())))
    done = subprocess.run(
        [shutil.which("bash"), str(SBATCH), "lab", *TOY], env=settings, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert_trained(tmp_path / "runs" / "lab")


@pytest.mark.slow
@pytest.mark.real_start
def test_pytorchjob_on_two_nodes(tmp_path):
    """Two real torchrun agents, with the variables that the operator gives their pods."""
    found, container = job("lab", 2, 2)
    elastic = found["spec"]["elasticPolicy"]
    operator = {
        "PET_NNODES": f"{elastic['minReplicas']}:{elastic['maxReplicas']}",
        "PET_RDZV_BACKEND": elastic["rdzvBackend"],
        "PET_RDZV_ENDPOINT": f"localhost:{free_port()}",
        "PET_RDZV_ID": "sage-grpo",
    }
    own = {entry["name"]: entry["value"] for entry in container["env"] if entry["name"].startswith("TORCH")}
    _, *arguments = container["command"]
    toy = ["--nproc-per-node=1" if word.startswith("--nproc") else word for word in arguments]
    command = [sys.executable, "-m", "torch.distributed.run", *toy, *TOY]
    pods = [subprocess.Popen(command, cwd=tmp_path, env=environment(**operator, **own)) for _ in range(2)]
    assert [pod.wait() for pod in pods] == [0, 0]
    assert_trained(tmp_path / "runs" / "lab")
