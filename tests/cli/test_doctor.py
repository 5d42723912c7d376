"""`sage-grpo doctor`: this machine, one without extras, and planted faults, each with its fix."""

import json
import socket
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError

import pytest
from packaging.requirements import Requirement
from typer.testing import CliRunner

from bare import brought
from distributed.test_full_disk import small_disk
from sage_grpo import registry
from sage_grpo.cli import app
from sage_grpo.preflight.first_run import doctor


@pytest.fixture
def offline(monkeypatch):
    """Nobody is asked; the hub has its own test."""
    monkeypatch.setattr(doctor, "network", lambda: iter([doctor.port(0)]))


def ask(*words):
    return CliRunner().invoke(app, ["doctor", *map(str, words)])


def named(findings, name):
    return next(finding for finding in findings if finding.name == name)


@pytest.mark.slow
def test_this_machine_is_told_on_one_page(offline, tmp_path):
    said = ask("--folder", tmp_path)
    assert said.exit_code == 0, said.output
    for section in ("Software", "Devices", "Room", "Network", "Scorers"):
        assert f"\n{section}\n" in said.output
    assert "✓ torch: " in said.output
    assert "✗" not in said.output
    assert "nothing is broken" in said.output


@pytest.mark.slow
def test_json_has_every_finding(offline, tmp_path):
    found = json.loads(ask("--folder", tmp_path, "--json").stdout)
    assert found["broken"] == 0
    rows = [row for section in found["sections"].values() for row in section]
    assert all(row["fix"] for row in rows if not row["ok"])
    assert all(row["ok"] or not row["needed"] for row in rows)


def test_without_extras_each_has_its_install_line(monkeypatch):
    there = brought(("sage-grpo",))

    def version(name):
        return "99" if name.lower().replace("_", "-") in there else None

    for module in (doctor, registry):
        monkeypatch.setattr(module, "installed_version", version)
    models = named(doctor.software(), "extra models")
    assert (models.ok, models.needed, models.fix) == (False, False, "pip install 'sage-grpo[models]'")
    scorers = {finding.name: finding for finding in doctor.scorers()}
    assert scorers["ocr"].fix == "pip install 'sage-grpo[ocr]'"
    assert scorers["motion"].ok


def test_a_wrong_torch(monkeypatch):
    found = doctor.package(Requirement("torch>=99"))
    assert found.broken
    assert "pip install 'torch>=99'" in found.fix
    monkeypatch.setattr(doctor, "requires", lambda name: ["torch>=99", "nobody-has-this>=1; extra == 'models'"])
    assert [f.name for f in doctor.software() if f.broken] == ["torch"]


def test_a_checkout_that_is_not_installed(monkeypatch):
    def requires(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(doctor, "requires", requires)
    found = named(doctor.software(), "sage-grpo")
    assert (found.ok, found.broken, found.fix) == (False, False, "pip install .")


def test_a_torch_that_cannot_be_imported(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    (only,) = doctor.devices()
    assert (only.name, only.broken) == ("torch", True)
    assert "reinstall" in only.fix


def test_a_package_that_is_missing():
    found = doctor.package(Requirement("nobody-has-this>=1"))
    assert (found.broken, found.found) == (True, "not installed")
    assert found.fix == "pip install 'nobody-has-this>=1'"


def test_a_full_disk(tmp_path):
    with small_disk(tmp_path / "disk", 2) as disk:
        with suppress(OSError), (disk / "filler").open("wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass
        findings = list(doctor.room(disk / "runs"))
    written, space = findings[:2]
    assert (written.broken, written.found) == (True, "No space left on device")
    assert "run.out=DIR" in written.fix
    assert (space.ok, space.broken) == (False, False)


def test_a_folder_that_cannot_be_written():
    first = next(doctor.room(doctor.Path("/proc/runs")))
    assert first.broken
    assert "--folder DIR" in first.fix


def test_a_port_that_is_taken():
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen(1)
        number = other.getsockname()[1]
        taken = doctor.port(number)
    assert (taken.ok, taken.broken) == (False, False)
    assert f"--master-port={number + 1}" in taken.fix
    assert doctor.port(number).ok


@pytest.mark.slow
def test_a_hub_that_does_not_answer(monkeypatch):
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{nobody.getsockname()[1]}")
        hub = named(doctor.network(), "hub")
    assert (hub.ok, hub.broken) == (False, False)
    assert "HF_ENDPOINT" in hub.fix


@pytest.mark.slow
def test_what_is_broken_ends_with_one(offline):
    said = ask("--folder", "/proc/runs")
    assert said.exit_code == 1
    assert "✗ folder /proc/runs" in said.output
    assert "1 to fix" in said.output
    assert "Traceback" not in said.output
