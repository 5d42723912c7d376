"""Several processes give what one gives: the same draws to the bit, the same weights to 1e-6, in every layout."""

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import NamedTuple

import pytest
import torch
from torch.distributed import TCPStore

from distributed.launcher import environment, torchrun
from distributed.test_checkpoint import spoil
from distributed.worker import LABORATORY
from once import once
from sage_grpo.config import ConfigError, load_recipe
from sage_grpo.core.sampler import generate
from sage_grpo.distributed.checkpoint import load_newest
from sage_grpo.distributed.device import ALLOCATOR, DeviceError, allocator, backend_for, choose_device
from sage_grpo.distributed.processes import join, meeting_place
from sage_grpo.runs.folder import RunFolder
from sage_grpo.training.build import build_model, build_prompts
from sage_grpo.videos import read_mp4
from sweeps import further


def launch(folder, processes, *cases):
    worker = ["distributed.worker", str(folder), *cases]
    command = torchrun(processes, *worker) if processes > 1 else [sys.executable, "-m", *worker]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr  # whole: the first to die speaks first


def result(folder, name):
    return torch.load(folder / f"{name}.pt", weights_only=True)


def assert_alike(one, other, limit=1e-6, spared=0, updates=10, prefix=0.0):
    """`spared` counts numbers that may differ more: those whose gradient is rounding, which Adam normalises.

    `prefix` is how far the first states may be apart, where steps before a window are walked in other batches.
    """
    assert one["updates"] == other["updates"] == updates
    assert all(torch.equal(a, b) for a, b in zip(one["noise"][1::2], other["noise"][1::2], strict=True))
    start, other_start = one["noise"][0], other["noise"][0]  # of the first rollout, before any update
    assert (start - other_start).abs().max() <= prefix
    assert one["scores"][0].shape == other["scores"][0].shape == (8, 1)
    off = torch.cat([(one["weights"][n] - other["weights"][n]).abs().flatten() for n in one["weights"]])
    beyond = int((off > limit).sum())
    assert beyond <= spared, f"{beyond} of {len(off)} weights differ by up to {off.max():.2e}"
    return off.max().item()


class Cases(NamedTuple):
    exact: tuple[str, ...]  # in float32
    half: tuple[str, ...]
    copied: tuple[str, ...]  # of the exact ones; also in copies of shards, and with a number of processes that changes


CASES = {
    # adapters of HunyuanVideo-1.5 and Wan are in test_objectives.py as well
    "first": Cases(("shapes-full", "shapes-frugal", "shapes-early", "wan-full"), ("wan-lora-bf16",), ("shapes-full",)),
    "others": Cases(("shapes-lora", "hunyuan15-lora", "hunyuan15-full", "wan-lora"), ("wan-full-bf16",), ("wan-lora",)),
    "sound": Cases(("ltx2-lora", "tones-full"), (), ("ltx2-lora",)),
}
SPARED = {"wan-full": 4}  # of 19,832; the others of this and all weights of the other models within 1e-6
SPARED_IN_PARTS = SPARED | {"shapes-frugal": 90}  # of 441,704, where two processes share a video
# One iteration of five has no signal at all, and others have it on one process only.
SAVING = {"shapes-frugal": {"updates": 8, "prefix": 1e-6}}


def run_all(folder, cases):
    """Every case of the two tests below. A launch serves all cases of its number of processes, which lay themselves out
    anew for each; the legs of the run whose number changes go along where they can."""

    def leg(iterations):
        return [f"{case}:{iterations}/suffix=parts" for case in cases.copied]

    everything = (*cases.exact, *(f"{case}:2" for case in cases.half))
    shared = [f"{case}/sequence=2/suffix=shared" for case in cases.exact]
    copies = [f"{case}/replicate=2" for case in cases.copied]
    copies += [f"{case}:{n}/replicate=2/suffix=resumed" for case in cases.copied for n in (2, 5)]
    both = [f"{case}/sequence=2/suffix=both" for case in cases.copied]
    launch(folder, 1, *everything)
    launch(folder, 2, *everything, *shared, *leg(2))
    launch(folder, 1, *leg(3))
    launch(folder, 4, *copies, *both, *leg(4))
    launch(folder, 2, *leg(5))


@pytest.fixture(scope="module", params=["first", further("others"), further("sound")])
def ends(request, tmp_path_factory):
    cases = CASES[request.param]
    return once(tmp_path_factory, f"every-layout-{request.param}", lambda folder: run_all(folder, cases)), cases


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_every_layout_equals_one_process(ends):
    """Two shards; copies of shards (HSDP); one video for two; half precision with recomputation."""
    ends, cases = ends
    for case in cases.exact:
        one, two = result(ends, f"{case}-1"), result(ends, f"{case}-2")
        off = assert_alike(one, two, spared=SPARED.get(case, 0), **SAVING.get(case, {}))
        print(f"{case}: weights after 10 updates differ by {off:.1e}; held {two['held']:.3f}")
        assert two["held"] <= 0.6  # of all parameters, anchor and average adapters included
        assert one["held"] == 1.0
        assert two["before"] == (1.0 if case.startswith(LABORATORY) else 0.0)  # read shard by shard, never whole
        shared = result(ends, f"{case}-shared")
        off = assert_alike(one, shared, spared=SPARED_IN_PARTS.get(case, 0), **SAVING.get(case, {}))
        print(f"{case}: with a shared video they differ by {off:.1e}; held {shared['held']:.3f}")
        assert shared["held"] <= 0.6
        # a process looks at its first batch; with a shared video that is the same one
        assert shared["drift"] == pytest.approx(one["drift"], rel=0.01, abs=1e-5)
        assert 0.1 < two["drift"]["kl_initial"] / one["drift"]["kl_initial"] < 10  # of another batch, too
    for case in cases.copied:
        four, both = result(ends, f"{case}-4"), result(ends, f"{case}-both")
        assert_alike(result(ends, f"{case}-1"), four)
        resumed = result(ends, f"{case}-resumed")["weights"]
        assert all(torch.equal(weights, resumed[name]) for name, weights in four["weights"].items())
        assert_alike(result(ends, f"{case}-1"), both)
        assert four["held"] <= 0.6
        assert both["held"] <= 0.35
    for case in cases.half:  # the gate held in both, or they would not have ended
        one, two = result(ends, f"{case}-1"), result(ends, f"{case}-2")
        assert {w.dtype for w in two["weights"].values()} == {torch.float32}
        assert torch.equal(one["noise"][0], two["noise"][0])
        off = max((one["weights"][n] - two["weights"][n]).abs().max().item() for n in one["weights"])
        assert off <= 8e-5  # four updates of at most 1e-5 each, in opposite directions


def train_in_two(folder, module, *settings):
    small = ("parallel.processes=2", "policy.prompts_per_iteration=4", "policy.batch_size=16", f"run.out={folder}")
    command = torchrun(2, module, "train", "lab", *small, *settings)
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done


def assert_samples(run):
    """Three videos that two processes made are those of one, in their order."""
    config = load_recipe("lab")
    model, prompts = build_model(config), build_prompts(config)(0, 3)
    alone = model.decode(generate(model, prompts, config, range(3)))
    folder = run.sample(0)
    assert [entry["prompt"] for entry in json.loads(folder.prompts.read_text())] == [p.text for p in prompts]
    for i in range(3):
        found = torch.from_numpy(read_mp4(folder.video(i)))
        scale = found.shape[1] // alone.shape[2]
        found = found[:, scale // 2 :: scale, scale // 2 :: scale].float()
        off = [(found - video.float()).abs().mean().item() for video in alone]
        assert off[i] < 5 < min(off[:i] + off[i + 1 :])  # mp4 is lossy


@pytest.mark.slow
def test_a_new_run_is_not_taken_for_an_earlier_one(tmp_path):
    """Where `resume: never` looks for one on a process that starts later than the first."""
    train_in_two(tmp_path, "distributed.late_worker", "run.iterations=1", "run.resume=never")


@pytest.mark.slow
def test_the_command_under_torchrun(tmp_path):
    sampled = ("run.sample_every=2", "run.samples=3")
    done = train_in_two(tmp_path, "sage_grpo", "run.iterations=2", "run.save_every=1", *sampled, "--json")
    assert json.loads(done.stdout.splitlines()[-1])["iterations"] == 2
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 2  # written once
    assert_samples(RunFolder(tmp_path))
    folder = tmp_path / "checkpoints"
    files = [path for path in (folder / "step-00000002").rglob("*") if path.is_file()]
    assert {path.name for path in files} == {
        "__0_0.distcp",
        "__1_0.distcp",
        "index.json",
        "state.json",
        "manifest.json",
    }
    for file in files:
        for damage in ("truncate", "flip"):
            data = file.read_bytes()
            spoil(file, damage)
            found, _, (problem,) = load_newest(folder)
            assert (found, "step-00000002" in problem) == ("step-00000001", True)
            file.write_bytes(data)
    assert load_newest(folder)[0] == "step-00000002"


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_number_of_processes_may_change_between_resumes(ends):
    """2 → 1 → 4 → 2 processes end as one that never changed."""
    ends, cases = ends
    for case in cases.copied:
        one, other = result(ends, f"{case}-1"), result(ends, f"{case}-parts")
        assert len(other["noise"]) == 2  # of one iteration: the last leg went on from the others
        assert torch.equal(one["noise"][-1], other["noise"][-1])
        off = max((one["weights"][n] - other["weights"][n]).abs().max().item() for n in one["weights"])
        assert off <= 1e-6
        assert one["updates"] == other["updates"]
        assert one["copies"] == other["copies"]


@pytest.mark.parametrize(
    ("parallel", "policy", "message"),
    [
        ({"processes": 6, "sequence": 4}, {}, "sequence=4 × replicate=1 does not divide processes=6; use processes=8"),
        ({"processes": 8, "replicate": 3}, {}, "use processes=9 or replicate=2"),
        ({"processes": 4}, {"prompts_per_iteration": 3, "batch_size": 2}, "do not divide into 4 replicas"),
    ],
)
def test_layouts_are_checked_with_the_nearest_fix(parallel, policy, message):
    with pytest.raises(ConfigError, match=message):
        load_recipe({"parallel": parallel, "policy": policy})


def test_launch_that_does_not_fit_the_recipe(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert join(1, 1, 1) is None
    with pytest.raises(
        ConfigError, match=r"processes=64, but 1 was started; use `torchrun --nproc-per-node=8 --nnodes=8"
    ):
        join(64, 2, 1)


@pytest.mark.slow
def test_restarted_processes_do_not_meet_the_dead():
    """One store over four starts, as torchrun keeps it: after whole ones, and after ones that lost a process early."""
    server = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    limit = timedelta(seconds=20)

    def start(rank):
        store = TCPStore("localhost", server.port, is_master=False)
        return meeting_place(store, rank, 3, limit)

    def lost(rank):  # it says that it is there, and dies before the first process answers
        if rank == 0:
            server.set("leader", "dead")
        else:
            server.set(f"dead/{rank}", "dead too")

    for attempt in range(4):
        if attempt % 2:
            list(map(lost, (0, 1)))
        with ThreadPoolExecutor(3) as pool:
            late = [pool.submit(start, rank) for rank in (1, 2)]  # they find the leader of the attempt before
            time.sleep(0.3)
            assert not any(found.done() for found in late)
            stores = [found.result(timeout=30) for found in (pool.submit(start, 0), *late)]
        assert not stores[1].check(["word"])
        stores[0].set("word", str(attempt))
        assert {store.get("word") for store in stores} == {str(attempt).encode()}


def test_device_and_backend():
    assert choose_device("cpu").type == "cpu"
    assert backend_for(torch.device("cpu")) == "gloo"
    assert "nccl" in backend_for(torch.device("cuda"))
    for name, message in (("cuda", "not available here"), ("nonsense", "is not a device")):
        with pytest.raises(DeviceError, match=message):
            choose_device(name)


@pytest.mark.parametrize(
    ("name", "local_rank", "found"),
    [
        ("auto", None, "cuda:0"),
        ("auto", 2, "cuda:2"),
        ("cuda", None, "cuda:0"),
        ("cuda", 2, "cuda:2"),
        ("cuda:1", None, "cuda:1"),
        ("cpu", 2, "cpu"),
    ],
)
def test_every_process_has_an_accelerator_of_its_own(monkeypatch, name, local_rank, found):
    current = pretend_accelerators(monkeypatch, 3)
    assert choose_device(name, local_rank) == torch.device(found)
    assert current == ([int(found[-1])] if found != "cpu" else [])


@pytest.mark.parametrize("name", ALLOCATOR)
def test_memory_of_gpus_grows_unless_the_user_says_otherwise(monkeypatch, name):
    pretend_accelerators(monkeypatch, 1)
    choose_device("cpu")
    assert allocator() is None
    choose_device()
    assert allocator() == "PYTORCH_ALLOC_CONF=expandable_segments:True"
    pretend_accelerators(monkeypatch, 1)
    monkeypatch.setenv(name, "max_split_size_mb:512")
    choose_device()
    assert [os.environ.get(other) for other in ALLOCATOR if other != name] == [None, None]
    assert allocator() == f"{name}=max_split_size_mb:512"


@pytest.mark.parametrize(
    ("name", "local_rank", "message"),
    [
        ("cuda:1", 0, "would put all processes on one device; use auto or cuda"),
        ("cuda:0", 1, "would put all processes on one device"),
        ("cuda:3", None, "is not there: this machine has 3 of cuda"),
        (
            "auto",
            3,
            "process 3 has no device of its own: this machine has 3 of cuda, counted from 0; start 3 processes",
        ),
    ],
)
def test_a_device_that_is_shared_or_missing_is_refused(monkeypatch, name, local_rank, message):
    pretend_accelerators(monkeypatch, 3)
    with pytest.raises(DeviceError, match=message):
        choose_device(name, local_rank)


def pretend_accelerators(monkeypatch, count):
    """Names of GPUs without any; returns the numbers that became the current one."""
    current = []
    for name in ALLOCATOR:  # undone in the end, although the code under test sets one
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: count)
    monkeypatch.setattr(torch.accelerator, "set_device_index", current.append)
    return current
