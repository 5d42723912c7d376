"""Nothing that is read from a file or a network can run code: seen in the source, and tried with a planted pickle."""

import ast
import pickle
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load

from sage_grpo.rewards.remote.wire import WireError, unpack_answer, unpack_request
from support import Trap

ROOT = Path(__file__).parents[2] / "src" / "sage_grpo"
RUN_CODE = {"pickle", "cloudpickle", "dill", "shelve", "marshal", "joblib", "jsonpickle"}  # modules that may on reading
HARMLESS = {"pickle.UnpicklingError"}  # what torch raises when it refuses
CALLS = {"eval", "exec", "compile", "__import__"}
HASHED_FIRST = {"rewards/kid.py"}  # TorchScript is a program: its file is loaded only with the hash that was tested


def faults(source, place=""):
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names]
            whole = [f"{node.module}.{name}" for name in names] if isinstance(node, ast.ImportFrom) else names
            found += [f"imports {name}" for name in whole if name.split(".")[0] in RUN_CODE and name not in HARMLESS]
        if not isinstance(node, ast.Call):
            continue
        called, keywords = ast.unparse(node.func), {k.arg: ast.unparse(k.value) for k in node.keywords}
        if called in CALLS:
            found.append(f"calls {called}")
        if called == "torch.load" and keywords.get("weights_only") != "True":
            found.append("torch.load without weights_only=True")
        if called.endswith(("yaml.load", "yaml.unsafe_load", "yaml.full_load")):
            found.append(f"{called}: use yaml.safe_load")
        if keywords.get("allow_pickle") == "True" or keywords.get("trust_remote_code") == "True":
            found.append(f"{called} runs what it reads")
        if called == "torch.jit.load" and place not in HASHED_FIRST:
            found.append("torch.jit.load of a file whose hash nobody checked")
        if keywords.get("shell") == "True":
            found.append("a shell")
    return found


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda p: str(p.relative_to(ROOT)))
def test_nothing_that_is_read_can_run(path):
    assert not faults(path.read_text(), str(path.relative_to(ROOT)))


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from cloudpickle import loads",
        "from pickle import load",
        "torch.load(x)",
        "torch.load(x, weights_only=False)",
        "np.load(x, allow_pickle=True)",
        "yaml.load(x)",
        "eval(x)",
        "AutoModel.from_pretrained(x, trust_remote_code=True)",
        "torch.jit.load(x)",
        "subprocess.run(x, shell=True)",
    ],
)
def test_a_planted_fault_is_seen(source):
    assert faults(source)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_on_the_wire_runs_nothing(protocol, tmp_path):
    bad = pickle.dumps(Trap(tmp_path / "ran"), protocol)
    for data in (bad, len(bad).to_bytes(8, "little") + bad):
        with pytest.raises(WireError):
            unpack_request(data)
        with pytest.raises(WireError):
            unpack_answer(data, ["score"], ["id"])
        with pytest.raises(SafetensorError):
            load(data)
    assert not (tmp_path / "ran").exists()


def test_a_pickle_in_place_of_weights_runs_nothing(tmp_path):
    (tmp_path / "model.pth").write_bytes(pickle.dumps(Trap(tmp_path / "ran")))
    with pytest.raises(pickle.UnpicklingError):
        torch.load(tmp_path / "model.pth", weights_only=True)
    assert not (tmp_path / "ran").exists()


def test_the_trap_springs(tmp_path):
    """Else nothing that is refused above would mean anything."""
    pickle.loads(pickle.dumps(Trap(tmp_path / "ran")))  # noqa: S301
    assert (tmp_path / "ran").exists()
