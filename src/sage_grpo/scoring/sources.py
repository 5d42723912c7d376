"""What a scorer is, read from its source and never imported: that would load libraries for seconds, or lack them."""

import ast
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

UNKNOWN = object()  # a value that only running the code would tell
REQUIRED = object()  # the default of an option that has none
OURS = "sage_grpo"


@dataclass(frozen=True)
class Module:
    name: str
    tree: ast.Module

    @property
    def doc(self) -> str:
        return ast.get_docstring(self.tree) or ""

    def defined(self, name: str) -> "tuple[Module, ast.AST] | None":
        """The class, function or value of that name, here or in that module of ours that it is imported from."""
        for node in self.tree.body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
                return self, node
            if (value := _assigned(node, name)) is not None:
                return self, value
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(OURS):
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        return read(str(node.module)).defined(alias.name)
        return None

    def imports(self) -> set[str]:
        """All modules imported anywhere in it, and every constant text, for `import_module("library")` is one."""
        found: set[str] = set()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) < 80:
                found.add(node.value)
        return found


@cache
def read(name: str) -> Module:
    spec = find_spec(name)  # imports the packages around it only
    if spec is None or not spec.origin:
        raise ModuleNotFoundError(f"no module {name}", name=name)
    return Module(name, ast.parse(Path(spec.origin).read_text(encoding="utf-8")))


def libraries(module: Module, known: set[str], seen: frozenset[str] = frozenset()) -> set[str]:
    """Which of the known libraries it needs, itself or through our other scorers' files."""
    found: set[str] = set()
    for name in module.imports():
        top = name.split(".")[0]
        if top in known:
            found.add(top)
        beside = ".".join(name.split(".")[:3])  # no deeper: to look inside a module, Python would import it
        if beside.startswith(f"{OURS}.rewards.") and beside not in seen and find_spec(beside):
            found |= libraries(read(beside), known, seen | {module.name, beside})
    return found


def _assigned(node: ast.AST, name: str) -> ast.expr | None:
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == name:
        return node.value
    if not isinstance(node, ast.Assign):
        return None
    for target in node.targets:
        if isinstance(target, ast.Name) and target.id == name:
            return node.value
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            for part, value in zip(target.elts, node.value.elts, strict=False):
                if isinstance(part, ast.Name) and part.id == name:
                    return value
    return None


def value_of(node: ast.AST | None, module: Module, names: dict[str, Any]) -> Any:
    """The value of a plain expression: literals, names, choices; anything else is unknown."""
    if isinstance(node, ast.Name):
        place = None if node.id in names else module.defined(node.id)
        return value_of(place[1], place[0], {}) if place else names.get(node.id, UNKNOWN)
    if isinstance(node, ast.IfExp):
        test = value_of(node.test, module, names)
        return UNKNOWN if test is UNKNOWN else value_of(node.body if test else node.orelse, module, names)
    if isinstance(node, ast.Tuple | ast.List):
        parts = [value_of(part, module, names) for part in node.elts]
        return UNKNOWN if UNKNOWN in parts else tuple(parts)
    if isinstance(node, ast.Dict):
        keys = [value_of(key, module, names) for key in node.keys]
        values = [value_of(value, module, names) for value in node.values]
        return UNKNOWN if UNKNOWN in keys or UNKNOWN in values else dict(zip(keys, values, strict=True))
    try:
        return ast.literal_eval(node) if isinstance(node, ast.expr) else UNKNOWN
    except (ValueError, TypeError):
        return UNKNOWN


@dataclass(frozen=True)
class Definition:
    """A scorer's class or function, with its bases of ours, nearest first."""

    chain: tuple[tuple[Module, ast.AST], ...]

    @property
    def doc(self) -> str:
        node = self.chain[0][1]
        return (ast.get_docstring(node) or "") if isinstance(node, ast.ClassDef | ast.FunctionDef) else ""

    def attribute(self, name: str) -> Any:
        """Of the class, or what `__init__` sets with the options at their defaults; else unknown."""
        for module, node in self.chain:
            for part in getattr(node, "body", []):
                if (given := _assigned(part, name)) is not None:
                    return value_of(given, module, {})
            if start := _start(node):
                for part in ast.walk(start):
                    if isinstance(part, ast.Assign) and any(
                        isinstance(target, ast.Attribute) and target.attr == name for target in part.targets
                    ):
                        return value_of(part.value, module, self.options())
        return UNKNOWN

    def options(self) -> dict[str, Any]:
        """Keywords with their defaults; where some are passed on, those of the base too."""
        found: dict[str, Any] = {}
        for module, node in self.chain:
            start = node if isinstance(node, ast.FunctionDef) else _start(node)
            if start is None:
                continue
            given = start.args
            plain = given.args[0 if isinstance(node, ast.FunctionDef) else 1 :]
            defaults: list[ast.expr | None] = [None] * (len(plain) - len(given.defaults)) + list(given.defaults)
            for argument, default in [
                *zip(plain, defaults, strict=True),
                *zip(given.kwonlyargs, given.kw_defaults, strict=True),
            ]:
                value = REQUIRED if default is None else value_of(default, module, {})
                found.setdefault(argument.arg, ast.unparse(default) if default and value is UNKNOWN else value)
            if not given.kwarg:
                break
        return found


def _start(node: ast.AST) -> ast.FunctionDef | None:
    found = [n for n in getattr(node, "body", []) if isinstance(n, ast.FunctionDef) and n.name == "__init__"]
    return found[0] if found else None


def definition(module: Module, attribute: str) -> Definition:
    chain: list[tuple[Module, ast.AST]] = []
    waiting = [(module, attribute)]
    while waiting:
        here, name = waiting.pop(0)
        place = here.defined(name)
        if place is None:
            continue
        chain.append(place)
        waiting += [(place[0], base.id) for base in getattr(place[1], "bases", []) if isinstance(base, ast.Name)]
    if not chain:
        raise LookupError(f"{module.name} has no {attribute}")
    return Definition(tuple(chain))
