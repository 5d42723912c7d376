"""What a string of the source says to a reader."""

import ast
import re

GAP = "…"  # what is filled in


def template(node: ast.AST) -> str | None:
    """A string of the source with … for what is filled in."""
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else GAP for part in node.values)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return re.sub(r"%[-.\d]*[srdgf]", GAP, node.value)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = template(node.left), template(node.right)
        return None if left is None and right is None else (left or GAP) + (right or GAP)
    return None
