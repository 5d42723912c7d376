"""A fork is what a real start would have been: the same words, ends, and weights to the bit."""

import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from distributed.launcher import environment, torchrun
from distributed.worker import checkpoint_of
from forks import popen, ranks, wire
from forks.session import search_path
from sweeps import further

pytestmark = pytest.mark.slow

PROGRAMS = {
    "words": ("-c", "import sys; print(sys.argv, sys.path[0])", "a", "b"),
    "module": ("-m", "json.tool", "--help"),
    "stdin": ("-",),
    "script": ("script.py", "a"),
    "code": ("-c", "raise SystemExit(7)"),
    "sentence": ("-c", "raise SystemExit('no such recipe')"),
    "error": ("-c", "def f():\n    return 1 / 0\nf()"),
    "main": ("-c", "class A: pass\nimport pickle; print(pickle.loads(pickle.dumps(A())).__class__)"),
    "at exit": ("-c", "import atexit; atexit.register(print, 'bye'); print('hello', flush=True)"),
    "thread": (
        "-c",
        "import threading, time; threading.Thread(target=lambda: (time.sleep(0.3), print('last'))).start()",
    ),
    "kill": ("-c", "import os; print('unflushed'); os.kill(os.getpid(), 9)"),
    "stop": ("-c", "import os, time; os.kill(os.getpid(), 15); time.sleep(9)"),
    "interrupt": ("-c", "import os, time; os.kill(os.getpid(), 2); time.sleep(9)"),
    "variables": ("-c", "import os; print(os.environ['MINE'], os.environ.get('HOME'), os.getcwd(), os.umask(0))"),
    "threads": ("-c", "import torch; print(torch.get_num_threads())"),
    "unbuffered": ("-u", "-c", "import os; print('said'); os.kill(os.getpid(), 9)"),
    "command": ("-m", "sage_grpo", "train", "lab", "policy.clop=1"),
    "option": ("-I", "-c", "import sys; print(sys.flags.isolated)"),  # refused, so real
}


def start(cls, words, folder, **more):
    settings = environment(MINE="x") | more
    settings.pop("PYTHONPATH")
    return cls([sys.executable, *words], cwd=folder, env=settings, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
               stderr=subprocess.PIPE, text=True)  # fmt: skip


def is_fork(process):
    return getattr(process, "connection", None) is not None


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_fork_says_and_ends_as_a_real_start(name, tmp_path):
    (tmp_path / "script.py").write_text("import sys\nprint(__name__, sys.argv, sys.path[0])\n")
    found = []
    for cls in (popen.Popen, popen.REAL):
        process = start(cls, PROGRAMS[name], tmp_path)
        out, errors = process.communicate("print(__name__, 'from stdin')", timeout=60)
        found.append((process.returncode, out, errors))
        assert is_fork(process) == (cls is popen.Popen and name != "option")
    assert found[0] == found[1]


def test_unseeded_numbers_differ_between_forks(tmp_path):
    code = "import random, numpy, torch; print(random.random(), numpy.random.rand(), torch.rand(1).item())"
    said = [start(popen.Popen, ("-c", code), tmp_path).communicate()[0].split() for _ in range(2)]
    assert all(one != other for one, other in zip(*said, strict=True))


def test_a_fork_can_be_killed_and_waited_for(tmp_path):
    process = start(popen.Popen, ("-c", "import time; print('here', flush=True); time.sleep(60)"), tmp_path)
    assert process.stdout.readline() == "here\n"
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.1)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait(5) == -signal.SIGKILL
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


def test_open_files_are_passed_on(tmp_path):
    here, there = os.pipe()
    process = popen.Popen([sys.executable, "-c", f"import os; os.write({there}, b'x')"], pass_fds=[there])
    os.close(there)
    assert is_fork(process)
    assert process.wait(20) == 0
    with os.fdopen(here, "rb") as pipe:
        assert pipe.read() == b"x"


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "HF_HOME", "PYTORCH_CUDA_ALLOC_CONF"])
def test_what_is_read_at_import_needs_a_real_start(name, tmp_path):
    process = start(popen.Popen, ("-c", f"import os; print(os.environ[{name!r}])"), tmp_path, **{name: "3"})
    assert not is_fork(process)
    assert process.communicate()[0] == "3\n"


def test_another_copy_of_the_package_needs_a_real_start(tmp_path):
    (tmp_path / "sage_grpo").mkdir()
    (tmp_path / "sage_grpo" / "__init__.py").write_text("name = 'the other'")
    command = [sys.executable, "-c", "import sage_grpo; print(sage_grpo.name)"]
    process = popen.Popen(command, env=environment(PYTHONPATH=str(tmp_path)), stdout=subprocess.PIPE, text=True)
    assert not is_fork(process)
    assert process.communicate()[0] == "the other\n"


def test_programs_of_a_shell_are_forks(tmp_path):
    lines = (
        "sage-grpo --version\npython -c 'import os, sys; print(os.getppid(), *sys.argv)' x\nsage-grpo labs || echo $?"
    )
    settings = {"cwd": tmp_path, "env": os.environ | {"PATH": search_path()}}
    done = subprocess.run(["bash", "-eu"], input=lines, capture_output=True, text=True, check=False, **settings)
    version, words, code = done.stdout.splitlines()
    assert (version[:10], code) == ("sage-grpo ", "2")
    pgrep = ["pgrep", "-f", os.environ[wire.SERVER]]
    server = subprocess.run(pgrep, capture_output=True, text=True, check=True).stdout.split()
    assert words.split()[0] in server
    assert words.split()[1:] == ["-c", "x"]


RANKS = """
import os, sys, time
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], flush=True)
if os.environ["RANK"] == "1":
    sys.exit(int(sys.argv[1]))
time.sleep(float(sys.argv[2]))
"""


@pytest.mark.parametrize(("code", "seconds"), [(0, 0), (3, 60)])
def test_ranks_end_together(code, seconds, tmp_path):
    """Where one fails, those that wait for it are ended."""
    (tmp_path / "ranks_end.py").write_text(RANKS)
    command = [*torchrun(2, "ranks_end", code, seconds)]
    process = popen.Popen(
        command, env=environment(), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    out, errors = process.communicate(timeout=30)
    assert sorted(out.splitlines()) == ["rank 0 of 2", "rank 1 of 2"]
    assert process.returncode == bool(code)
    assert not code or "rank 1 ended first, with exit code 3" in errors


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--standalone --nproc-per-node=2 -m a b", (2, ["-m", "a", "b"])),
        ("--standalone --nproc-per-node=4 --max-restarts=0 -m a", (4, ["-m", "a"])),
        ("--standalone --nproc-per-node=2 --max-restarts=7 -m a", None),
        ("--nnodes=2 --nproc-per-node=2 -m a", None),
        ("--standalone --nproc-per-node=2 script.py", None),
    ],
)
def test_where_torchrun_itself_is_needed(words, expected):
    assert ranks.asked(["-m", "torch.distributed.run", *words.split()]) == expected
    assert ranks.asked(["/bin/torchrun", *words.split()]) == expected


def end_weights(cls, folder, processes, *cases):
    folder.mkdir(exist_ok=True)
    worker = ["distributed.worker", str(folder), *cases]
    command = torchrun(processes, *worker) if processes > 1 else [sys.executable, "-m", *worker]
    process = cls(command, env=environment(SAVE_EVERY="1"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert is_fork(process) == (cls is popen.Popen)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0, out[-3000:]
    return {path.name: torch.load(path, weights_only=True) for path in folder.glob("*.pt")}


@pytest.mark.parametrize(
    ("processes", "cases"), [(1, ["shapes-full:2"]), further(2, ["shapes-full:2", "hunyuan15-lora:2"])]
)
def test_a_run_ends_with_the_same_bits(processes, cases, tmp_path):
    """From the start, and resumed: the real run goes on in a fork and the forked one in a real process."""
    pytest.importorskip("diffusers")
    if processes > 1:
        for name in "ab":
            checkpoint_of("hunyuan15", tmp_path / name)
    forked = end_weights(popen.Popen, tmp_path / "a", processes, *cases)
    real = end_weights(popen.REAL, tmp_path / "b", processes, *cases)
    assert set(forked) == set(real) == {f"{case.partition(':')[0]}-{processes}.pt" for case in cases}
    assert_equal(forked, real)
    longer = [case.replace(":2", ":3") for case in cases]
    assert_equal(
        end_weights(popen.REAL, tmp_path / "a", processes, *longer),
        end_weights(popen.Popen, tmp_path / "b", processes, *longer),
    )


def assert_equal(one, other):
    for name, end in one.items():
        assert end["updates"] == other[name]["updates"] > 0
        for key in ("weights", "noise"):
            a, b = end[key], other[name][key]
            pairs = [(a[k], b[k]) for k in a] if isinstance(a, dict) else zip(a, b, strict=True)
            assert all(torch.equal(x, y) for x, y in pairs), (name, key)


def test_starting_is_what_the_fork_spares(tmp_path):
    """Side by side: to import the model libraries takes a fork a small part of the time."""
    seconds = []
    for cls in (popen.Popen, popen.REAL):
        began = time.monotonic()
        assert start(cls, ("-c", "import diffusers, transformers, peft, sage_grpo.models.wan"), tmp_path).wait() == 0
        seconds.append(time.monotonic() - began)
    assert seconds[0] < seconds[1] / 3
