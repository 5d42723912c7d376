"""A run that is killed, interrupted or damaged goes on as if it had never stopped."""

import signal
import subprocess
import sys
import time

import pytest
import torch
from rich.console import Console

from distributed.launcher import environment
from gaussian_model import GaussianModel
from sage_grpo.config import ConfigError
from sage_grpo.core.outside import INITIAL
from sage_grpo.training.callbacks import Save
from sage_grpo.training.trackers import read_metrics
from sage_grpo.training.trainer import Trainer
from training.test_trainer import brightness, make, recipe

RUN = """
import sys
from pathlib import Path
from training.test_trainer import make
trainer = make(Path(sys.argv[1]), iterations=12, sample_every=0)
trainer.train()
"""


def start(folder):
    return subprocess.Popen([sys.executable, "-c", RUN, str(folder)], env=environment())


def wait_for_row(folder, step, process):
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        path = folder / "metrics.jsonl"
        if path.exists() and len(path.read_bytes().splitlines()) >= step:
            return
        time.sleep(0.005)


def final_state(folder):
    from sage_grpo.distributed.checkpoint import load_checkpoint

    return load_checkpoint(folder / "checkpoints", "step-00000012")


def assert_equal_states(a, b, place="state"):
    if isinstance(a, torch.Tensor):
        assert torch.equal(a, b), place
    elif isinstance(a, dict):
        assert list(a) == list(b), place
        for key in a:
            assert_equal_states(a[key], b[key], f"{place}/{key}")
    elif isinstance(a, list | tuple):
        assert len(a) == len(b), place
        for i, pair in enumerate(zip(a, b, strict=True)):
            assert_equal_states(*pair, f"{place}/{i}")
    else:
        assert a == b, place


@pytest.mark.slow
def test_killed_runs_resume_bit_equal(tmp_path):
    """SIGKILL at three different moments of one run; weights, optimizer, anchors, EMA, gauge and curves agree."""
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    assert start(straight).wait() == 0
    for step in (1, 5, 9):
        process = start(broken)
        wait_for_row(broken, step, process)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert start(broken).wait() == 0
    assert_equal_states(final_state(straight), final_state(broken))
    curves = [
        [
            {k: v for k, v in row.items() if not k.startswith(("time", "seconds/", "speed/"))}
            for row in read_metrics(f / "metrics.jsonl")
        ]
        for f in (straight, broken)
    ]
    assert curves[0] == curves[1]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interruption_saves_and_ends_cleanly(tmp_path, number):
    process = start(tmp_path)
    wait_for_row(tmp_path, 3, process)
    process.send_signal(number)
    assert process.wait() == 0
    rows = read_metrics(tmp_path / "metrics.jsonl")
    assert 3 <= len(rows) < 12
    assert (tmp_path / "checkpoints" / f"step-{len(rows):08d}").is_dir()  # at the iteration it had reached


def test_damaged_checkpoints_are_passed_over(tmp_path):
    make(tmp_path, iterations=4).train()
    newest = tmp_path / "checkpoints" / "step-00000004" / "tensors" / "__0_0.distcp"
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 1
    newest.write_bytes(data)
    trainer = make(tmp_path, iterations=6)
    assert trainer._resume()
    assert trainer.loop.iteration == 2


def test_a_finished_run_is_not_saved_again(tmp_path):
    """To write its last checkpoint anew would take the old one away first, and a kill in between would lose both."""
    make(tmp_path, iterations=2).train()
    newest = tmp_path / "checkpoints" / "step-00000002"
    before = newest.stat().st_ino
    assert make(tmp_path, iterations=2).train().iterations == 2
    assert newest.stat().st_ino == before


def test_files_of_killed_writers_are_removed(tmp_path):
    make(tmp_path, iterations=3).train()
    hang = tmp_path / "hang" / "20261119-170107-errors" / ".rank-0001.txt.1-2.new"  # the launcher ends a failing rank
    left = [tmp_path / ".metrics.jsonl.1.new", tmp_path / "samples" / "000003" / ".00.mp4.1.new", hang]
    for file in left:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"half")
    make(tmp_path, iterations=4).train()
    assert not any(file.exists() for file in left)


def test_what_cannot_be_removed_does_not_end_a_run(tmp_path, monkeypatch):
    """The other processes would wait for the first one, which no watchdog looks after yet."""

    def refused(folder):
        raise PermissionError(13, "not yours", str(folder))

    monkeypatch.setattr("sage_grpo.training.bookkeeping.sweep", refused)
    assert make(tmp_path, iterations=1).train().iterations == 1


@pytest.mark.parametrize("gauge", [0, 2])
def test_a_penalty_that_is_set_later_needs_the_initial_policy(tmp_path, gauge):
    """The gauge keeps it. Without it, the policy of the checkpoint would pass for the initial one."""

    def run(weight, iterations):
        settings = recipe(tmp_path, iterations=iterations, sample_every=0) | {"gauge": {"every": gauge}}
        settings["kl"] = settings["kl"] | {"outside_weight": weight}
        return Trainer(GaussianModel(), [brightness], settings, ["a", "b"], console=Console(quiet=True))

    first = run(0.0, 2)
    start = {name: p.detach().clone() for name, p in first.model.module.named_parameters()}
    first.train()
    if gauge:
        later = run(1.0, 4)
        later.train()
        assert_equal_states(dict(later.loop.bank.state_dict()[INITIAL]), start)
    else:
        with pytest.raises(ConfigError, match=r"does not hold the initial policy.*use kl\.outside_weight=0"):
            run(1.0, 4).train()
        run(0.0, 4).train()


def test_resume_with_other_prompts_is_refused(tmp_path):
    make(tmp_path, iterations=2).train()
    with pytest.raises(ConfigError, match="the prompts are not those of"):
        make(tmp_path, prompts=("x", "y"), iterations=4).train()


@pytest.mark.slow
def test_resume_never_does_not_overwrite(tmp_path):
    make(tmp_path).train()
    with pytest.raises(ConfigError, match="holds a run already"):
        make(tmp_path, resume="never").train()


@pytest.mark.parametrize("old", [False, True])
def test_the_accelerator_s_random_numbers_are_resumed(tmp_path, monkeypatch, old):
    """A generator of our own stands for that of a GPU. Checkpoints of before have none, and are read all the same."""
    device, generator = torch.device("cuda", 0), torch.Generator().manual_seed(7)

    class Module:
        @staticmethod
        def get_rng_state(of):
            assert of == device
            return generator.get_state()

        @staticmethod
        def set_rng_state(state, of):
            assert of == device
            generator.set_state(state)

    monkeypatch.setattr(torch, "get_device_module", lambda of: Module)

    def part(iterations):
        trainer = make(tmp_path / "run", iterations=iterations, sample_every=0)
        trainer.random.device = device
        trainer.train()

    with monkeypatch.context() as before:
        if old:
            without = lambda save, config, parts: Save(save, config, {"gauge": parts["gauge"]})  # noqa: E731
            before.setattr("sage_grpo.training.trainer.Save", without)
        part(2)
    expected = torch.rand(3, generator=generator)
    other = torch.rand(3, generator=generator.manual_seed(8))
    generator.manual_seed(8)  # a new process
    part(4)
    assert torch.equal(torch.rand(3, generator=generator), other if old else expected)


@pytest.mark.slow
def test_two_runs_in_one_folder_are_refused(tmp_path):
    process = start(tmp_path)
    wait_for_row(tmp_path, 1, process)
    with pytest.raises(ConfigError, match=r"another run is writing into .*; wait for it, or use another run.out"):
        make(tmp_path, iterations=12).train()
    assert process.wait() == 0
    assert [row["step"] for row in read_metrics(tmp_path / "metrics.jsonl")] == list(range(1, 13))
    assert make(tmp_path, iterations=12).train().iterations == 12  # a lock ends with its holder
