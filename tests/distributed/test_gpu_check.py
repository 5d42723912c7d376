"""The check of every process's device: the numbers are right, and a slow process among two real ones is named."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from distributed.launcher import environment, torchrun
from distributed.worker import brightness, recipe
from sage_grpo.distributed import gpu_check
from sage_grpo.distributed.device import HOST
from sage_grpo.distributed.gpu_check import Speed, measure_speeds, slow_devices
from sage_grpo.distributed.processes import leave
from sage_grpo.training.trainer import Trainer

USUAL = [Speed(rank, f"node{rank // 2}", rank % 2, 600.0, 40.0) for rank in range(4)]


def test_one_process_has_no_link():
    (speed,) = measure_speeds(None, HOST)
    assert speed.tflops > 0
    assert speed.gigabytes is None
    assert not slow_devices([speed])


def test_operations_are_counted_by_the_clock(monkeypatch):
    monkeypatch.setattr(gpu_check, "median_seconds", lambda call, device: 0.5)
    (speed,) = measure_speeds(None, HOST)
    assert speed.tflops == pytest.approx(2 * 384**3 / 0.5 / 1e12)


def test_what_is_far_below_the_median_is_named():
    assert not slow_devices(USUAL)
    hot = [*USUAL[:2], replace(USUAL[2], tflops=400.0), USUAL[3]]
    (said,) = slow_devices(hot)
    assert said.startswith("rank 2 (GPU 0 of node1) multiplies matrices at 400 TFLOP/s, the median is 600; ")
    (said,) = slow_devices([*USUAL[:3], replace(USUAL[3], gigabytes=3.0)])
    assert said.startswith("rank 3 (GPU 1 of node1) receives 3 GB/s from the process before it, the median is 40; ")


@pytest.mark.slow
def test_a_slow_process_of_two_is_named_before_the_run(tmp_path):
    command = torchrun(2, "distributed.test_gpu_check", tmp_path)
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert "devices: 2 checked" in done.stdout
    words = " ".join(done.stdout.split())
    assert "slow: rank 1 (GPU 1 of " in words
    assert words.count("multiplies matrices at") == 1
    first, second = json.loads((tmp_path / "run" / "devices.json").read_text())
    assert first["tflops"] > 2 * second["tflops"]
    assert first["gigabytes"] > 0


def main(folder):
    inner = gpu_check.median_seconds

    def planted(call, device):
        slow = torch.distributed.get_rank() == 1 and call.__name__ == "<lambda>"  # the product, not the message
        return inner(call, device) * (9 if slow else 1)

    gpu_check.median_seconds = planted
    values = recipe(folder, "shapes-full", folder / "run", 1, {})
    values |= {"run": values["run"] | {"check_gpus": True}}
    Trainer(rewards=[brightness], config=values, prompts=["a red circle moving left", "a cat"]).train()
    leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
