"""The tests of a change: what the import graph says, on a small tree and on this one."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from affected import ROOT, Graph, changed

SMALL = {
    "src/sage_grpo/__init__.py": '_HOMES = {"Public": "top"}\nif TYPE_CHECKING:\n    import sage_grpo.top\n',
    "src/sage_grpo/__main__.py": "from sage_grpo import command\n",
    "src/sage_grpo/base.py": "",
    "src/sage_grpo/top.py": "def late():\n    from .base import x\n",
    "src/sage_grpo/command.py": "",
    "src/sage_grpo/plug/__init__.py": "",
    "src/sage_grpo/plug/one.py": "",
    "src/sage_grpo/finder.py": 'from importlib import import_module\nfor room in ("plug",): import_module(room)\n',
    "src/sage_grpo/reader.py": 'HERE = "recipes"\n',
    "tests/worker.py": "import sage_grpo.base\n",
    "tests/conftest.py": "",
    "tests/a/conftest.py": "import sage_grpo.command\n",
    "tests/a/test_command.py": "",
    "tests/test_base.py": "from sage_grpo.base import x\n",
    "tests/test_face.py": "from sage_grpo import Public\n",
    "tests/test_find.py": "import sage_grpo.finder\n",
    "tests/test_none.py": "import sage_grpo\n",
    "tests/test_page.py": 'PAGE = ROOT / "docs"\n',
    "tests/test_recipe.py": "import sage_grpo.reader\n",
    "tests/test_start.py": 'run(["-m", "sage_grpo", "train"])\n',
    "tests/test_worker.py": 'run("worker")\n',
}
BY_CHANGE = {
    "src/sage_grpo/base.py": {"base", "face", "worker"},
    "src/sage_grpo/command.py": {"command", "start"},
    "src/sage_grpo/plug/one.py": {"find"},
    "src/sage_grpo/recipes/lab.yaml": {"recipe"},
    "src/sage_grpo/top.py": {"face"},
    "tests/test_none.py": {"none"},
    "tests/worker.py": {"worker"},
    "docs/plan.md": {"page"},
    "LICENSE": set(),
}
ALL = {name.rpartition("test_")[2][:-3] for name in SMALL if "test_" in name}


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    root = tmp_path_factory.mktemp("tree")
    for name, text in SMALL.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def names(tests):
    return {test.stem.removeprefix("test_") for test in tests}


@pytest.mark.parametrize("change", BY_CHANGE)
def test_the_tests_of_a_change(small, change):
    assert names(Graph(small).tests({change})) == BY_CHANGE[change]


@pytest.mark.parametrize("change", ["constraints.txt", "tests/conftest.py", "tests/forks/server.py"])
def test_a_change_to_what_all_tests_share(small, change):
    assert names(Graph(small).tests({change})) == ALL


def test_what_differs_from_a_branch(small):
    def git(*words):
        identity = ["-c", "user.name=Test", "-c", "user.email=test@example.org"]
        subprocess.run(["git", "-C", str(small), *identity, *words], check=True, capture_output=True)

    git("init", "--initial-branch=main")
    git("add", ".")
    git("commit", "-m", "start")
    git("checkout", "-b", "change")
    (small / "src/sage_grpo/base.py").write_text("x = 1")
    git("commit", "-a", "-m", "change")
    (small / "tests/worker.py").write_text("")
    (small / "new.txt").write_text("")
    assert changed("main", small) == {"src/sage_grpo/base.py", "tests/worker.py", "new.txt"}


@pytest.fixture(scope="module")
def graph():
    return Graph()


@pytest.mark.slow
def test_tests_of_this_tree(graph):
    def of(change):
        assert (ROOT / change).exists()
        return {str(path.relative_to(ROOT / "tests")) for path in graph.tests({change})}

    assert {"math/test_kernels.py", "distributed/test_processes.py"} <= of("src/sage_grpo/math/kernels.py")
    assert {"models/test_contract.py", "rehearsal/test_rehearse.py"} <= of("src/sage_grpo/models/wan.py")
    assert "math/test_kernels.py" not in of("src/sage_grpo/models/wan.py")
    assert "documentation/test_commands.py" in of("docs/plan.md")
    assert "distributed/test_processes.py" not in of("docs/plan.md")
    assert of("tests/distributed/sequence_worker.py") == {"distributed/test_sequence.py"}


IMPORTED = """
import json, sys
sys.path[:0] = ["tests"]
import importlib
importlib.import_module({module!r})
print(json.dumps([m.__file__ for n, m in sys.modules.items() if n.partition(".")[0] == "sage_grpo" and m.__file__]))
"""


@pytest.mark.slow
@pytest.mark.real_start
@pytest.mark.parametrize("module", ["sage_grpo.training.build", "sage_grpo.cli.tune", "distributed.worker"])
def test_the_graph_knows_all_that_is_imported(graph, module):
    """Against the interpreter."""
    code = IMPORTED.format(module=module)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert {Path(file) for file in json.loads(done.stdout)} <= graph.reached(graph.files[module])
