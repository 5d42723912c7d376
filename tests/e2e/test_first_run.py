"""The first run on a new machine, here on the host: the whole path, and one report that can be sent."""

import json

import pytest
import torch
from typer.testing import CliRunner

from sage_grpo.cli import app
from sage_grpo.distributed.device import HOST
from sage_grpo.preflight.first_run import attention, run
from sage_grpo.preflight.plan.hardware import guess_gpu

runner = CliRunner()


@pytest.mark.slow
def test_the_whole_path(tmp_path):
    out = tmp_path / "first"
    asked = ["first-run", "lab-fast", "--iterations", "3", "--gpu", "rtx4090-24g", "--out", str(out), "--json"]
    result = runner.invoke(app, asked)
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout.splitlines()[-1])
    assert told == json.loads((out / "first-run.json").read_text())
    assert told["error"] is None
    assert told["iterations"] == 3
    assert told["replay_deviation"] == 0.0
    assert all(check["ok"] for check in told["checks"])
    assert {"torch", "devices", "memory", "disk", "prompts", "rewards"} <= {check["name"] for check in told["checks"]}
    assert all(row["measured"] > 0 for row in told["seconds"].values())
    assert told["calibration"]["gpu"] == "rtx4090-24g"
    assert (out / "calibration.yaml").exists()
    assert str(tmp_path.home()) not in (out / "first-run.json").read_text()
    again = runner.invoke(app, asked)
    assert again.exit_code == 2
    assert "holds a first run already" in " ".join((again.stderr or again.output).split())


def test_what_is_missing_is_told_and_written_down(tmp_path):
    """Before any process is started: a reward that cannot be had, and prompts that are not there."""
    out = tmp_path / "first"
    wrong = ["prompts.path=nowhere.txt", "rewards=[{type: videoalign, options: {path: nowhere}}]"]
    result = runner.invoke(app, ["first-run", "lab-fast", *wrong, "--out", str(out)])
    assert result.exit_code == 2
    words = " ".join((result.stderr or result.output).split())
    assert "prompts:" in words
    assert "rewards:" in words
    report = json.loads((out / "first-run.json").read_text())
    assert "nowhere" in report["error"]
    assert {check["name"] for check in report["checks"] if not check["ok"]} == {"prompts", "rewards"}
    assert not (out / "run").exists()


@pytest.mark.parametrize("error", [RuntimeError("no kernel image is available"), KeyboardInterrupt()])
def test_an_error_of_a_driver_is_in_the_report_too(tmp_path, monkeypatch, error):
    """What a new machine raises is rarely an error of ours, and the report is what a user can send."""

    def broken(*details):
        raise error

    monkeypatch.setattr(run, "estimate", broken)
    with pytest.raises(type(error)):
        run.first_run("lab-fast", [], tmp_path / "first", 1, None, emit=lambda text: None)
    report = json.loads((tmp_path / "first" / "first-run.json").read_text())
    assert report["error"] == f"{type(error).__name__}: {error}"
    assert report["checks"]


def test_attention_that_rounds_differently_is_seen(monkeypatch):
    """On the host both ways give the same bits; a kernel that does not is planted."""
    rows = attention.attention_report(HOST)
    chosen = [row for row in rows if row["kernel"] == "torch's choice"]
    assert [row["equal"] for row in chosen] == [True, True]
    assert all(row["equal"] is None and row["why"] for row in rows if row["kernel"] == "cuDNN")
    plain = attention.scaled_dot_product_attention

    def rounds(query, key, value, attn_mask=None):
        out = plain(query, key, value, attn_mask=attn_mask)
        return out * (1 + 2**-7) if torch.is_grad_enabled() and query.requires_grad else out

    monkeypatch.setattr(attention, "scaled_dot_product_attention", rounds)
    row = attention.attention_report(HOST)[0]
    assert row["equal"] is False
    assert row["steady"] is True
    assert row["deviation"] == pytest.approx(2**-7, rel=0.5)


def test_the_fastest_kernel_that_keeps_the_bits_is_proposed():
    def row(kernel, seconds, equal=True, mask=False):
        return {"kernel": kernel, "mask": mask, "equal": equal, "seconds": {"forward": 1.0, "training": seconds}}

    chosen = row(attention.CHOSEN, 2.0)
    assert attention.fastest([chosen, row("cuDNN", 1.0), row("flash", 1.5)]) == "_native_cudnn"
    assert attention.fastest([chosen, row("cuDNN", 1.0, equal=False), row("flash", 1.5)]) == "_native_flash"
    assert attention.fastest([chosen, row("FlashAttention 3", 0.5)]) == "_flash_3"
    assert attention.fastest([chosen, row("flash", 1.99)]) is None  # not worth a setting
    assert attention.fastest([chosen, row("cuDNN", 1.0, mask=True)]) is None
    assert attention.fastest([{"kernel": "cuDNN", "mask": False, "equal": None, "why": "not here"}]) is None


def test_kernels_are_timed():
    row = attention.attention_report(HOST)[0]
    assert 0 < row["seconds"]["forward"] < row["seconds"]["training"]
    assert row["shape"] == list(attention.SMALL)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("NVIDIA H100 80GB HBM3", "h100-80g"),
        ("NVIDIA A100-SXM4-40GB", "a100-40g"),
        ("NVIDIA A100-SXM4-80GB", "a100-80g"),
        ("NVIDIA GeForce RTX 4090", "rtx4090-24g"),
        ("NVIDIA H100 PCIe", "h100-80g"),
        ("NVIDIA H200", "h200-141g"),
        ("AMD Instinct MI300X", "mi300x-192g"),
        ("NVIDIA RTX A1000", None),
        ("NVIDIA GH200 480GB", None),
        ("NVIDIA GB200", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("cpu", None),
    ],
)
def test_gpus_are_recognised_by_name(name, kind):
    assert guess_gpu(name) == kind
