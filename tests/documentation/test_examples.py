"""Examples in docstrings run and print what they say; every public name has one."""

import doctest
from importlib import import_module
from pathlib import Path

import pytest

import sage_grpo
from sage_grpo import registry
from sage_grpo.math.kernels import KERNELS
from sage_grpo.math.objectives import OBJECTIVES
from sage_grpo.training.trackers import TRACKERS

SOURCE = Path(sage_grpo.__file__).parent
FILES = [path for path in sorted(SOURCE.rglob("*.py")) if ">>> " in path.read_text()]
TRAINING = {"core/sampler.py", "inference/reopen.py", "training/trainer.py"}  # they sample or train for seconds
PLAIN = {"__version__", "ConfigError", "UserError"}


def short(path):
    return str(path.relative_to(SOURCE))


@pytest.mark.parametrize(
    "path", [pytest.param(p, id=short(p), marks=[pytest.mark.slow] * (short(p) in TRAINING)) for p in FILES]
)
def test_examples_print_what_they_say(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    registered = (KERNELS, OBJECTIVES, TRACKERS, *registry._OWN.values())
    before = [dict(known) for known in registered]
    module = import_module(".".join(("sage_grpo", *Path(short(path)).with_suffix("").parts)).removesuffix(".__init__"))
    try:
        # as in a module of a user: what it registers is not taken for built in
        own = {"__name__": "__main__"}
        result = doctest.testmod(module, extraglobs=own, optionflags=doctest.NORMALIZE_WHITESPACE)
    finally:
        for known, old in zip(registered, before, strict=True):
            known.clear()
            known.update(old)
    assert result.attempted > 0
    assert result.failed == 0


@pytest.mark.parametrize("name", sorted(set(sage_grpo.__all__) - PLAIN))
def test_a_public_name_has_an_example(name):
    assert ">>> " in (getattr(sage_grpo, name).__doc__ or "")


def test_a_wrong_example_is_seen(tmp_path, monkeypatch):
    (tmp_path / "wrong_example.py").write_text('"""\n>>> 1 + 1\n3\n"""\n')
    monkeypatch.syspath_prepend(tmp_path)
    assert doctest.testmod(import_module("wrong_example")).failed == 1
