"""Write docs/configuration.md from the schema: `make configuration`. A test says when it is out of date."""

import re
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import annotated_types as bounds
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from sage_grpo.config import FleetConfig, RecipeConfig
from sage_grpo.config.load import shipped_recipes

PAGE = Path(__file__).with_name("configuration.md")
SIGNS = {bounds.Ge: ("ge", "≥"), bounds.Gt: ("gt", ">"), bounds.Le: ("le", "≤"), bounds.Lt: ("lt", "<")}
WORDS = {str: "text", int: "whole number", float: "number", bool: "true or false", type(None): "none", Any: "anything"}

HEAD = """# Every setting

A recipe is a YAML file with these sections. What it leaves out has the default below; an unknown key is an error that
names the nearest one. `section.key=value` on the command line overrides a recipe; lists and mappings as YAML:

```sh
sage-grpo train lab --check policy.clip=1e-5 'optimizer.betas=[0.9, 0.95]'
```

A recipe may build on another, a shipped one or a file next to it: `extends: hunyuan15-64gpu` and what is different.
Sections are filled up; values and lists take the place of the other's.

`--check` prints the recipe in full and starts nothing. A run keeps its own in `config.yaml` of its folder.

This page is made from the schema by `make configuration`; a test fails when the two differ. Shipped recipes:
{recipes}. `--check` shows any of them.
"""


def kind(annotation: Any) -> str:
    """A type in words."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return ", ".join(f"`{part}`" for part in parts)
    if origin in (Union, types.UnionType):
        return " or ".join(kind(part) for part in parts)
    if origin is tuple:
        return f"list of {kind(parts[0])}" if parts[-1] is Ellipsis else f"{len(parts)} numbers"
    if origin is dict:
        return f"mapping of {kind(parts[0])} to {kind(parts[1])}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "mapping"
    return WORDS[annotation]


def limits(field: FieldInfo) -> str:
    found = [
        f"{sign} {getattr(limit, name):g}"
        for limit in field.metadata
        for name, sign in [SIGNS.get(type(limit), ("", ""))]
        if sign
    ]
    return f", {' and '.join(found)}" if found else ""


def default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return "**needed**"
    if value is None:
        return "none"
    if value in ((), {}):
        return "empty"
    text = (
        str(list(value)) if isinstance(value, tuple) else str(value).lower() if isinstance(value, bool) else f"{value}"
    )
    return f"`{text.replace(chr(39), chr(34))}`"


def inner(annotation: Any) -> type[BaseModel] | None:
    """The section that a key holds, alone or in a list."""
    for found in (annotation, *get_args(annotation)):
        if isinstance(found, type) and issubclass(found, BaseModel):
            return found
    return None


def table(schema: type[BaseModel]) -> Iterator[str]:
    yield "| key | type | default | meaning |\n|---|---|---|---|"
    yield from rows(schema)


def rows(schema: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Keys of a section within a section have both names; sections of the recipe have tables of their own."""
    for name, field in schema.model_fields.items():
        within = inner(field.annotation)
        if within is None:
            meaning = (field.description or "").replace("|", "\\|")
            yield f"| `{prefix}{name}` | {kind(field.annotation)}{limits(field)} | {default(field)} | {meaning} |"
        elif within is field.annotation and schema is not RecipeConfig:
            yield from rows(within, f"{prefix}{name}.")


def section(title: str, schema: type[BaseModel], note: str) -> str:
    return f"## {title}\n\n{note}\n\n" + "\n".join(table(schema)) + "\n"


def sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:].removesuffix('.')}."


def page() -> str:
    recipes = ", ".join(f"`{name}`" for name in shipped_recipes())
    parts = [HEAD.format(recipes=recipes)]
    parts += [section("Top level", RecipeConfig, "Besides the sections that follow:")]
    shown: dict[type[BaseModel], str] = {}
    for name, field in RecipeConfig.model_fields.items():
        schema = inner(field.annotation)
        if schema is None:
            continue
        listed = " A list; each entry has these keys:" if get_origin(field.annotation) is tuple else ""
        note = sentence(field.description or "")
        if schema in shown:
            parts.append(f"## `{name}`\n\n{note} A list, with the keys of `{shown[schema]}`.\n")
        else:
            parts.append(section(f"`{name}`", schema, note + listed))
        shown.setdefault(schema, name)
    parts.append(
        "## A fleet\n\nThe file of [`sage-grpo serve`](fleet.md).\n\n"
        + "\n".join(table(FleetConfig))
        + "\n\nEach entry of `scorers`:\n\n"
        + "\n".join(table(inner(FleetConfig.model_fields["scorers"].annotation) or FleetConfig))
        + "\n"
    )
    return re.sub(r"\n{3,}", "\n\n", "\n".join(parts))


if __name__ == "__main__":
    PAGE.write_text(page())
    print(f"wrote {PAGE}")
