"""Read what a class declares from its source file, without an import: libraries that the class needs may be missing.

Only plain values can be read: numbers, texts, tuples and dictionaries, or a constant of the same file.
"""

import ast
from functools import cache
from typing import Any

from sage_grpo.registry import ROOT

REQUIRED = object()  # an option without a default


class Declared:
    """The class attributes and constructor options of a class, read from its source file.

    Attributes and options that the class inherits from classes of this package are included.
    """

    def __init__(self, module: str, name: str) -> None:
        self.module = module
        tree = _tree(module)
        self.doc = ast.get_docstring(tree) or ""
        self.constants = _assigned(tree.body)
        self.node = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
        self.class_doc = ast.get_docstring(self.node) or ""
        self.bases = [base for parent in self.node.bases for base in _base(module, tree, parent)]

    def value(self, name: str) -> Any:
        """Return the value of the class attribute `name`, from the class itself or else from its first base class."""
        own = _assigned(self.node.body).get(name)
        if own is not None:
            return self._literal(own)
        for base in self.bases:
            return base.value(name)
        raise AttributeError(f"{self.node.name} declares no {name}")

    def options(self) -> dict[str, Any]:
        """Return the default of each constructor option by name, or `REQUIRED` for an option without a default.

        Options of the base classes are included if the class has no constructor of its own, or if its constructor takes
        `**options`.
        """
        own = next((n for n in self.node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"), None)
        inherited = {name: value for base in self.bases for name, value in base.options().items()}
        if own is None:
            return inherited
        arguments = own.args
        plain = [*arguments.posonlyargs, *arguments.args]
        free = len(plain) - len(arguments.defaults)
        defaults: list[ast.expr | None] = [*[None] * free, *arguments.defaults, *arguments.kw_defaults]
        given = {
            argument.arg: REQUIRED if default is None else self._literal(default)
            for argument, default in zip([*plain, *arguments.kwonlyargs], defaults, strict=True)
            if argument.arg != "self"
        }
        return (inherited | given) if arguments.kwarg else given

    def _literal(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Name) and node.id in self.constants:
            return self._literal(self.constants[node.id])
        if isinstance(node, ast.Call) and len(node.args) == 1:  # MappingProxyType({…}), Path("…")
            return self._literal(node.args[0])
        try:
            return ast.literal_eval(node)
        except ValueError:
            raise ValueError(f"{self.module}: {ast.unparse(node)} is not plain enough to be listed") from None


def _assigned(body: list[ast.stmt]) -> dict[str, ast.expr]:
    """Return the expression that is assigned to each name in the body of a class or module."""
    return {
        target.id: node.value
        for node in body
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }


@cache
def _tree(module: str) -> ast.Module:
    path = ROOT.joinpath(*module.split(".")[1:]).with_suffix(".py")
    return ast.parse(path.read_text(encoding="utf-8"))


def _base(module: str, tree: ast.Module, parent: ast.expr) -> list[Declared]:
    """Return the base class `parent` in a list, or an empty list if that class is not in this package."""
    if not isinstance(parent, ast.Name):
        return []
    if any(isinstance(node, ast.ClassDef) and node.name == parent.id for node in tree.body):
        return [Declared(module, parent.id)]
    for node in tree.body:
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("sage_grpo."):
            continue
        if any(alias.name == parent.id for alias in node.names):
            return [Declared(str(node.module), parent.id)]
    return []
