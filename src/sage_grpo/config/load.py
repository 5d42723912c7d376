"""Recipes from YAML with `key=value` overrides, and mistakes told in one line each."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from sage_grpo.config.recipe import RecipeConfig


class ConfigError(ValueError):
    """The recipe is wrong; the message says where, why and what is nearest."""


def load_recipe(source: str | Path | Mapping[str, Any], overrides: Sequence[str] = ()) -> RecipeConfig:
    """Read, override and validate; `overrides` are like `policy.clip=1e-5`."""
    values = dict(source) if isinstance(source, Mapping) else _read(Path(source))
    for text in overrides:
        _override(values, text)
    return validate(values)


def validate(values: Mapping[str, Any]) -> RecipeConfig:
    try:
        return RecipeConfig.model_validate(values)
    except ValidationError as error:
        lines = [_explain(tuple(e["loc"]), e["type"], e["msg"], e.get("input")) for e in error.errors()]
        raise ConfigError("\n".join(lines)) from None


def dump_recipe(config: RecipeConfig) -> str:
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def shipped_recipes() -> dict[str, Traversable]:
    """The recipes inside the package, by name."""
    found = [item for item in files("sage_grpo").joinpath("recipes").iterdir() if item.name.endswith(".yaml")]
    return {item.name.removesuffix(".yaml"): item for item in sorted(found, key=lambda item: item.name)}


def _read(path: Path) -> dict[str, Any]:
    source: Path | Traversable = path if path.is_file() else shipped_recipes().get(str(path), path)
    if not source.is_file():
        folder = path.parent if path.parent.is_dir() else Path()
        names = {p.name: str(folder / p.name) for p in folder.glob("*.y*ml")} | {n: n for n in shipped_recipes()}
        close = get_close_matches(path.name, names, n=1)
        hint = f"did you mean {names[close[0]]}?" if close else f"shipped recipes: {', '.join(shipped_recipes())}"
        raise ConfigError(f"there is no recipe {path}; {hint}")
    try:
        values = yaml.safe_load(source.read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid YAML: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path} holds no settings: a recipe is a YAML mapping such as `policy: {{clip: 1e-4}}`")
    return values


def _override(values: dict[str, Any], text: str) -> None:
    key, sign, value = text.partition("=")
    if not sign or not key:
        raise ConfigError(f"override {text!r} is not of the form key=value, such as policy.clip=1e-5")
    *path, last = key.split(".")
    for part in path:
        values = values.setdefault(part, {})
        if not isinstance(values, dict):
            raise ConfigError(f"override {text!r}: {part} is a value, it has no parts")
    # YAML 1.1 reads 1e-5 as text; pydantic turns the text into the number where one is wanted
    values[last] = yaml.safe_load(value)


def _explain(location: tuple[int | str, ...], kind: str, message: str, value: object) -> str:
    where = ".".join(str(part) for part in location) or "recipe"
    if kind == "extra_forbidden":
        names = _fields_at(location[:-1])
        close = get_close_matches(str(location[-1]), names, n=1, cutoff=0.5)
        elsewhere = _find(str(location[-1]))
        here = ".".join([*map(str, location[:-1]), close[0]]) if close else None
        meant = elsewhere if elsewhere and elsewhere.endswith(f".{location[-1]}") else here or elsewhere
        return f"{where}: unknown key; " + (f"did you mean {meant}?" if meant else f"known here: {', '.join(names)}")
    message = message.removeprefix("Value error, ")
    return f"{where}: {message}" + (f" (got {value!r})" if isinstance(value, str | int | float) else "")


def _fields_at(location: Sequence[int | str]) -> list[str]:
    model: Any = RecipeConfig
    for part in location:
        if isinstance(part, str) and isinstance(model, type) and issubclass(model, BaseModel):
            field = model.model_fields.get(part)
            model = field.annotation if field else None
        if not isinstance(model, type) and getattr(model, "__args__", None):
            model = model.__args__[0]  # the element of a tuple
    return list(model.model_fields) if isinstance(model, type) and issubclass(model, BaseModel) else []


def _find(name: str) -> str | None:
    """The full key of a setting that the user put on the wrong level."""
    known = {}
    for section, field in RecipeConfig.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            known.update({key: f"{section}.{key}" for key in field.annotation.model_fields})
    close = get_close_matches(name, known, n=1, cutoff=0.8)
    return known[close[0]] if close else None
