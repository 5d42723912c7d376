"""Recipes on CUDA tensors without values: every adapter runs, and planted faults are found by file and line."""

import inspect
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from rich.console import Console
from typer.testing import CliRunner

from sage_grpo import registry
from sage_grpo.cli import app
from sage_grpo.cli.rehearse_fake import show
from sage_grpo.config import ConfigError
from sage_grpo.core.update import COLUMNS, update
from sage_grpo.preflight.rehearsal import fake_cuda
from sage_grpo.preflight.rehearsal import fake_library as fake_shim
from sage_grpo.preflight.rehearsal.fake_report import FakeCudaReport, Row
from sage_grpo.preflight.rehearsal.fake_values import made_up
from sage_grpo.registry import resolve_model
from sage_grpo.training.build import resizable
from sweeps import further

pytestmark = pytest.mark.real_start

HERE = Path(__file__).parent
LORA = {"mode": "lora", "precision": "bfloat16", "gradient_checkpointing": True}
FULL = {"mode": "full", "precision": "bfloat16"}
ADAPTERS = {  # every model that can be made tiny, both ways of training across them; a process each
    "first": {"wan": LORA},
    "others": {
        "ltx": FULL,
        "wan2.2": FULL,
        "sd3": LORA,
        "wan-i2v": FULL,
        "wan2.2-i2v": LORA,
        "wan2.2-5b": LORA,
        "wan2.2-5b-i2v": FULL,
        "hunyuan15": FULL,
        "hunyuan15-i2v": LORA,
        "ltx-i2v": LORA,
        "ltx2": LORA,
        "ltx2-i2v": FULL,
        "qwen-image": LORA,
        "z-image": FULL,
    },
}
PROCESSES = {  # FSDP2 with a video that processes share, and with copies of the weights
    "first": ("hunyuan15", FULL, {"processes": 64, "sequence": 2}),
    "others": ("wan", LORA, {"processes": 8, "replicate": 2}),
}


def recipe(folder, model, tuning, **sections):
    values = {
        "model": {"type": model, "path": "somewhere/else", "guidance_scale": 3.0, "negative_prompt": "blurry"},
        "tuning": tuning,
        "kl": {"anchor": "moving"},
        "optimizer": {"ema": 0.9},
        "rewards": [{"type": "nowhere.at.all:Score"}],
        "monitors": [{"type": "sharpness"}],
        "gauge": {"every": 1},
        "policy": {"prompts_per_iteration": 64},
    } | sections
    path = folder / f"{model}.yaml"
    path.write_text(yaml.safe_dump(values))
    return str(path)


def act_out(cases, folder):
    done = subprocess.run(
        [sys.executable, str(HERE / "fake_cases.py"), str(folder)],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def assert_whole(report):
    assert not report["errors"], report["errors"]
    assert report["facts"] == {"iterations": 2, "updates": 2}
    seen = {row["phase"] for row in report["rows"]}
    assert {"load", "sample", "rollout", "score", "checks", "update", "gauge", "save", "resume"} <= seen, seen
    assert all(":" in row["place"] for row in report["rows"]), [r for r in report["rows"] if ":" not in r["place"]]


def assert_passes_are_not_waited_for(report):
    """Until all backward passes of an update are on their way, the host asks the device for nothing."""
    lines, first = inspect.getsourcelines(update)
    (end,) = (first + i for i, line in enumerate(lines) if "comm.clip_grad_norm(" in line)
    after = {f"core/update.py:{number}" for number in range(end, first + len(lines))}
    rows = [row for row in report["rows"] if row["phase"] == "update" and row["kind"] in ("wait", "to host")]
    seldom = (
        "core/selection.py:",  # once per iteration, before the first update
        "distributed/processes.py:",  # rewards of all processes, once per iteration
        "weights/lora_bank.py:",  # where the anchor is renewed
        "models/wan.py:",  # with two experts: which one takes these noise levels
    )
    rows = [row for row in rows if not row["place"].startswith(seldom)]
    assert rows  # the totals and the norm, after them
    assert [row for row in rows if row["place"] not in after] == []


def test_every_adapter_is_among_them():
    pytest.importorskip("diffusers")
    tiny = {name for name in registry.models() if resizable(resolve_model(name))}
    assert tiny == {name for group in ADAPTERS.values() for name in group}


@pytest.mark.slow
@pytest.mark.parametrize("group", ["first", further("others")])
def test_every_adapter_and_several_processes(group, tmp_path):
    cases = [{"recipe": recipe(tmp_path, name, tuning)} for name, tuning in ADAPTERS[group].items()]
    model, tuning, layout = PROCESSES[group]
    (tmp_path / "several").mkdir()
    cases.append({"recipe": recipe(tmp_path / "several", model, tuning, parallel=layout)})
    *alone, several = act_out(cases, tmp_path)
    for report in (*alone, several):
        assert_whole(report)
        assert_passes_are_not_waited_for(report)
    assert all("export" in report["covered"] for report in alone)
    assert several["processes"] == 4


def line_of(plant):
    lines = (HERE / "plants.py").read_text().splitlines()
    (number,) = (i for i, line in enumerate(lines, 1) if line.endswith(f"# planted: {plant}"))
    return f"plants.py:{number}"


FOUND = {  # plant: what else its sentence says
    "rollout": ("core/rollout.py:", "left the device at core/rollout.py:", "of the host"),
    "update": ("core/update.py:", "float64[2] of the device and float32[2] of the host"),
    "resume": ("core/loop.py:", "bank/ema is on the host", "tuning.offload_copies is off", "ema/places"),
    "optimizer": ("core/loop.py:", "optimizer is on the host", "(1 of its tensors: state/0/exp_avg)"),
    "backward": ("core/update.py:", "left the device at core/update.py:"),
}


@pytest.mark.slow
def test_planted_faults_are_found_by_file_and_line(tmp_path):
    """And a user's mistake is a sentence without a place; a scorer that picks frames by a list is no fault."""
    mistaken = recipe(tmp_path, "ltx", {"mode": "lora", "targets": ["to_query"]})
    cases = [{"recipe": mistaken}, {"recipe": "text"}, *({"recipe": "lab-fast", "plant": plant} for plant in FOUND)]
    mistake, numbers, *reports = act_out(cases, tmp_path)
    assert_whole(numbers)
    assert mistake["errors"][0].startswith("tuning.targets: no layer of the model is called 'to_query'")
    for (plant, words), report in zip(FOUND.items(), reports, strict=True):
        assert report["errors"], plant
        assert not report["ok"]
        for word in (line_of(plant), *words):
            assert any(word in error for error in report["errors"]), (plant, word, report["errors"])


@pytest.mark.slow
def test_the_command(tmp_path):
    """Counts of the laboratory: two iterations of one update; totals of three steps leave the device in its end."""
    tensor = torch.tensor
    result = CliRunner().invoke(app, ["rehearse", "lab-fast", "--fake-cuda", "--json", "--out", str(tmp_path / "r")])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout.splitlines()[-1])
    assert_whole(report)
    (row,) = (r for r in report["rows"] if r["kind"] == "to host" and r["place"].startswith("core/update.py:"))
    assert (row["phase"], row["count"], row["bytes"]) == ("update", 2, 2 * 3 * len(COLUMNS) * 8)
    assert_passes_are_not_waited_for(report)
    assert "NCCL" in report["not_seen"]
    assert torch.tensor is tensor  # nothing of it reaches this process
    assert not torch.cuda.is_available()


def test_errors_are_told_without_a_trace(tmp_path, monkeypatch):
    (tmp_path / "x").touch()
    result = CliRunner().invoke(app, ["rehearse", "lab", "--fake-cuda", "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert "is not empty" in " ".join(result.output.split())
    found = FakeCudaReport("lab", errors=["core/loop.py:1: something is on the host"])
    monkeypatch.setattr(fake_cuda, "rehearse_on_fake_cuda", lambda *asked: found)
    result = CliRunner().invoke(app, ["rehearse", "lab", "--fake-cuda"])
    assert result.exit_code == 2
    assert "error: core/loop.py:1: something is on the host" in " ".join(result.output.split())
    assert "Traceback" not in result.output
    result = CliRunner().invoke(app, ["rehearse", "lab", "--fake-cuda", "--full-size"])
    assert result.exit_code == 2
    assert "give one of them at a time" in " ".join(result.output.split())


def test_the_page_fits_eighty_columns():
    deep = "diffusers/models/transformers/transformer_hunyuan_video15.py"
    rows = [Row("wait", "rollout", "models/hunyuan15.py:122", f"{deep}:{i}", "mask", i, 8 * i) for i in range(3)]
    rows += [Row("to host", "update", f"core/update.py:{i}", "", "to", 2, 10**9) for i in range(40)]
    report = FakeCudaReport("some-recipe", processes=4, covered={"load": 3.0}, stand_ins=["x" * 90], rows=rows)
    console = Console(file=io.StringIO(), width=80, force_terminal=False)
    show(report, console)
    text = console.file.getvalue()
    assert max(map(len, text.splitlines())) <= 80
    for words in (
        "the first of 4 processes",
        "diffusers/…/transformer_hunyuan_video15.py:2",
        "and 2 more",
        "1,000,000.0 kB",
        "and 26 more (--json)",
        "NCCL",
    ):
        assert words in text, text


@pytest.mark.parametrize(
    ("version", "platform", "message"),
    [
        ({"cuda": "12.6", "__version__": "2.13.0+cu126"}, "linux", "built for CUDA 12.6. Use a virtual environment"),
        ({"hip": "6.3", "__version__": "2.13.0+rocm"}, "linux", "built for HIP 6.3"),
        ({}, "darwin", "only tried on Linux"),
    ],
)
def test_other_builds_of_torch_are_refused(version, platform, message):
    with pytest.raises(ConfigError, match=message):
        fake_shim.check_build(version, platform)


def test_without_a_compiler(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(fake_shim, "COMPILER", "no-such-compiler")
    with pytest.raises(ConfigError, match=r"no no-such-compiler here.*apt install g\+\+"):
        fake_shim.build_shim()
    assert not list(tmp_path.rglob("*.so*"))


@pytest.mark.slow
def test_a_removed_environment_leaves_no_library_that_cannot_be_loaded(tmp_path, monkeypatch):
    """The cache outlives a virtual environment: what was compiled for one torch is not used with another."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    here, removed = fake_shim.torch_folder(), tmp_path / "torch"
    removed.symlink_to(here)
    monkeypatch.setattr(fake_shim, "torch_folder", lambda: removed)
    fake_shim.build_shim()
    removed.unlink()
    monkeypatch.setattr(fake_shim, "torch_folder", lambda: here)
    load = f"import ctypes; ctypes.CDLL({str(fake_shim.build_shim())!r})"
    assert subprocess.run([sys.executable, "-c", load], check=False).returncode == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8, torch.bool, torch.int64])
def test_made_up_values(dtype):
    """Finite and positive, and where a reward may look at them not all alike."""
    values = made_up((2, 3), dtype)
    assert values.shape == (2, 3)
    assert values.dtype == dtype
    assert bool((values > 0).all())
    assert dtype in (torch.bool, torch.int64) or len(values.unique()) == 6
    assert made_up((), dtype).item() == 1
