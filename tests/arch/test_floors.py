"""Each floor imports only downward; math and core know no model library, files or processes."""

import ast
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "src" / "sage_grpo"
FLOORS = {
    name: floor
    for floor, names in enumerate(
        [
            ("errors", "suggest", "files", "progress", "statistics"),  # needs nothing of ours
            ("config", "math", "drawing"),
            ("core", "runs", "videos"),
            ("registry",),
            ("models", "rewards", "data", "distributed", "weights", "report"),
            ("training",),
            ("tune",),
            ("preflight/plan", "serve", "inference", "lab"),
            ("evaluation",),
            ("preflight", "preflight/rehearsal", "preflight/first_run", "paper"),
            ("cli",),
            ("__main__",),
        ]
    )
    for name in names
}
FORBIDDEN = {
    "config": {"torch", "numpy", "diffusers"},
    "math": {"diffusers", "transformers", "peft", "torch.distributed", "os", "io", "pathlib", "shutil", "tempfile"},
    "core": {"diffusers", "transformers", "peft", "torch.distributed", "os", "io", "pathlib", "shutil", "tempfile"},
}
ONLY_IMPORTER = {
    "diffusers": {"models"},
    "peft": {"weights"},
    "torch.distributed": {"distributed"},
    "ray": {"serve"},
}


def room_of(path: Path) -> str:
    return _room(path.relative_to(ROOT).with_suffix("").parts)


def _room(parts: Sequence[str]) -> str:
    """A package or module right below ours; `preflight` is three packages, which have floors of their own."""
    inner = "/".join(parts[:2])
    return inner if inner in FLOORS else parts[0]


def imports_of(source: str) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            found.add(f"{node.value.id}.{node.attr}")  # torch.distributed without an import of its own
    return found


def touches(imports: set[str], library: str) -> bool:
    return any(name == library or name.startswith(library + ".") for name in imports)


def faults(room: str, source: str) -> list[str]:
    imports, found = imports_of(source), []
    for name in imports:
        parts = name.split(".")
        other = _room(parts[1:]) if parts[0] == "sage_grpo" and len(parts) > 1 else ""
        if other in FLOORS and other != room and FLOORS[other] >= FLOORS[room]:
            found.append(f"{room} imports {other}, which is not below it")
    found += [f"{room} imports the studies"] if touches(imports, "research") else []
    found += [f"{room} imports {lib}" for lib in FORBIDDEN.get(room, ()) if touches(imports, lib)]
    found += [
        f"{room} imports {lib}, which only {sorted(rooms)} may"
        for lib, rooms in ONLY_IMPORTER.items()
        if room not in rooms and touches(imports, lib)
    ]
    if room in ("math", "core") and any(
        isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id == "open"
        for n in ast.walk(ast.parse(source))
    ):
        found.append(f"{room} opens a file")
    return found


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda p: str(p.relative_to(ROOT)))
def test_floors(path):
    room = room_of(path)
    if room == "__init__":
        return
    assert room in FLOORS, f"{room} has no floor yet: give it one"
    assert not faults(room, path.read_text())


@pytest.mark.parametrize(
    ("room", "source"),
    [
        ("math", "from sage_grpo.core import loop"),
        ("core", "from sage_grpo.models.wan import Wan"),
        ("core", "import diffusers"),
        ("core", "from torch import distributed"),
        ("core", "import torch\nx = torch.distributed.get_rank()"),
        ("math", "from pathlib import Path"),
        ("core", "open('x')"),
        ("models", "from sage_grpo.rewards import x"),
        ("config", "import torch"),
        ("rewards", "import diffusers"),
        ("lab", "from research.grid import run_grid"),
        ("preflight/plan", "from sage_grpo.preflight.rehearsal.run import rehearse"),
        ("preflight/rehearsal", "from sage_grpo.preflight.first_run import check"),
    ],
)
def test_the_test_sees_faults(room, source):
    assert faults(room, source)


DEVICES = re.compile(r"""\.cuda\(|["'](cuda|cpu|mps|xpu|npu)(:\d+)?["']|torch\.cuda\.""")
MAY_NAME_DEVICES = {  # the one that decides, the one that describes, those that pretend there is one
    "distributed/device.py",
    "training/environment.py",
    "preflight/rehearsal/fake_device.py",
    "preflight/rehearsal/fake_patches.py",
}


def test_one_place_decides_on_the_device():
    named = {
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in ROOT.rglob("*.py")
        if str(path.relative_to(ROOT)) not in MAY_NAME_DEVICES
        for line in path.read_text().splitlines()
        if DEVICES.search(line)
    }
    assert not named
    assert DEVICES.search("x.cuda()")
    assert DEVICES.search('device="cuda:0"')
