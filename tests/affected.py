"""Which tests a change can affect: `pytest --affected BASE` runs those, `python -m affected BASE` names their files.

A test file is affected by itself, by what it imports, directly or not, and by files that these name. Imports are read
from the source, wherever they stand. A string that names a module counts as an import, because processes are started by
name; a file that imports by computed names counts as importing all of its folder, or of the folders that it names.
"""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PLACES = {"src": "src", "tests": "tests", "research": "."}  # a folder, and what its modules are named from
EVERYTHING = ("pyproject.toml", "constraints.txt", ".ci/run", "tests/conftest.py", "tests/forks/")
GENERAL = {"src", "sage_grpo", "tests", ".github"}  # folders whose name says nothing about a file in them


def executed(tree):
    """All nodes but those that only type checkers read."""
    queue = [tree]
    while queue:
        node = queue.pop()
        yield node
        if not (isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
            queue += ast.iter_child_nodes(node)


class Graph:
    def __init__(self, root=ROOT):
        self.root = root
        self.files = {}  # by name of the module
        for place, start in PLACES.items():
            for path in sorted((root / place).rglob("*.py")):
                parts = path.relative_to(root / start).with_suffix("").parts
                self.files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
        self.names = {path: name for name, path in self.files.items()}
        self.trees = {path: list(executed(ast.parse(path.read_text()))) for path in self.names}
        self.strings = {path: set(self._strings(nodes)) for path, nodes in self.trees.items()}
        self.homes = self._homes()
        self.edges = {path: set(self._imports(path)) for path in self.names}

    @staticmethod
    def _strings(nodes):
        return (node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))

    def _homes(self):
        """Public names of the package that are imported when they are asked for, with their modules."""
        for node in self.trees.get(self.files.get("sage_grpo"), ()):
            if isinstance(node, ast.AnnAssign | ast.Assign) and isinstance(node.value, ast.Dict):
                pairs = zip(node.value.keys, node.value.values, strict=True)
                return {k.value: f"sage_grpo.{v.value}" for k, v in pairs if isinstance(v, ast.Constant)}
        return {}

    def _module(self, name):
        """Files that are run when `name` is imported: its packages too."""
        parts = name.split(".")
        names = (".".join(parts[: i + 1]) for i in range(len(parts)))
        return {self.files[name] for name in names if name in self.files}

    def _folder(self, name):
        return {path for module, path in self.files.items() if f"{module}.".startswith(f"{name}.")}

    def _imports(self, path):
        package = self.names[path] if path.name == "__init__.py" else self.names[path].rpartition(".")[0]
        for node in self.trees[path]:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield from self._module(alias.name)
            elif isinstance(node, ast.ImportFrom):
                base = ".".join(package.split(".")[: 1 - node.level or None]) if node.level else ""
                source = ".".join(filter(None, [base, node.module]))
                yield from self._module(source)
                for alias in node.names:
                    yield from self._module(f"{source}.{alias.name}")
                    if source == "sage_grpo" and alias.name in self.homes:
                        yield from self._module(self.homes[alias.name])
            elif isinstance(node, ast.Attribute) and ast.unparse(node).startswith("sage_grpo."):
                yield from self._module(self.homes.get(node.attr, ""))
        yield from self._named(path, package)
        for folder in path.parents:
            if folder.name == "tests":
                break
            if (folder / "conftest.py") in self.names:
                yield folder / "conftest.py"

    def _named(self, path, package):
        """What the strings of a file name: modules that it starts, or imports by computed names."""
        text = path.read_text()
        computed = path != self.files.get("sage_grpo") and ("import_module(" in text or "iter_modules(" in text)
        for string in self.strings[path]:
            for word in string.replace(":", " ").split() if len(string) < 2000 else ():
                if word in self.files and word != "tests":
                    yield from self._module(word)
                if word == "sage_grpo" and path.is_relative_to(self.root / "tests"):
                    yield from self._module("sage_grpo.__main__")
                if computed and f"sage_grpo.{word.strip('.')}" in self.files:
                    yield from self._folder(f"sage_grpo.{word.strip('.')}")
                if computed and word.endswith(".") and word.strip(".") in self.files:
                    yield from self._folder(word.strip("."))
        if computed and "import_module(f" in text:
            yield from self._folder(package)

    @cache  # noqa: B019  # a graph lives as long as the command
    def reached(self, path):
        """All files that a file depends on, itself among them."""
        found, queue = {path}, [path]
        while queue:
            new = self.edges[queue.pop()] - found
            found |= new
            queue += new
        return found

    def readers(self, changed):
        """Source files that name a file of another kind, or one of its folders."""
        names = {changed, *Path(changed).parts} - GENERAL
        return {path for path, strings in self.strings.items() if any(names & {s, *s.split("/")} for s in strings)}

    def tests(self, changed):
        """Test files that these changed files, relative to the root, can affect."""
        tests = [path for path in self.names if path.name.startswith("test_")]
        if any(name.startswith(EVERYTHING) for name in changed):
            return set(tests)
        moved = set()
        for name in changed:
            moved |= {self.root / name} if (self.root / name) in self.names else self.readers(name)
        return {path for path in tests if not moved.isdisjoint(self.reached(path))}


def changed(base, root=ROOT):
    """Files that differ from where this branch left `base`, committed or not."""

    def git(*words):
        done = subprocess.run(["git", "-C", str(root), *words], check=True, capture_output=True, text=True)
        return done.stdout.splitlines()

    (start,) = git("merge-base", base, "HEAD")
    return {*git("diff", "--name-only", start), *git("ls-files", "--others", "--exclude-standard")}


if __name__ == "__main__":
    for test in sorted(Graph().tests(changed(sys.argv[1] if len(sys.argv) > 1 else "origin/main"))):
        print(test.relative_to(ROOT))
