"""Reading of recipes from YAML with `key=value` overrides. Each mistake in them is reported in one line."""

import logging
import os
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from sage_grpo.config.fleet import FleetConfig
from sage_grpo.config.recipe import RecipeConfig
from sage_grpo.config.yaml_text import YamlError, read_yaml
from sage_grpo.errors import UserError
from sage_grpo.suggest import nearest

T = TypeVar("T", bound=BaseModel)

EQUIVALENT = {  # what others have a key for, by the key
    "gradient_accumulation": "batches are accumulated until a rollout's update; for four times as many videos in an "
    "update, use four times policy.prompts_per_iteration",
}
EQUIVALENT["gradient_accumulation_steps"] = EQUIVALENT["gradient_accumulation"]

RENAMED_KEYS = {  # old names, which are read until the next release
    "kl.beta_position": "kl.anchor_weight",
    "kl.beta_velocity": "kl.old_weight",
    "kl.velocity": "kl.estimator",
}


class ConfigError(UserError, ValueError):
    """Raised when a recipe or another setting is wrong; the message says where, why, and the nearest valid setting."""


def load_recipe(source: str | Path | Mapping[str, Any], overrides: Sequence[str] = ()) -> RecipeConfig:
    """Read a recipe, apply the overrides, and return it validated.

    Args:
        source: The name of a shipped recipe, a path to a YAML file, or a mapping of settings.
        overrides: One setting each, such as `policy.clip=1e-5`.

    Raises:
        ConfigError: The recipe is wrong; the message says what, where, and the nearest fix.

    Examples:
        >>> load_recipe("lab", ["policy.clip=1e-3"]).policy.clip
        0.001
    """
    return validate(read_settings(source, overrides), RecipeConfig)


def read_settings(source: str | Path | Mapping[str, Any], overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Return the settings of a recipe, not yet validated, with the overrides applied.

    Settings that the recipe lacks are filled in from the recipe that it `extends`. The arguments are those of
    `load_recipe`.
    """
    values = _extended(dict(source), Path(), ()) if isinstance(source, Mapping) else _read(Path(source))
    for text in overrides:
        _override(values, text)
    return values


def load_fleet(path: str | Path) -> FleetConfig:
    """Read the settings of `sage-grpo serve` from a YAML file, and return them validated."""
    if not Path(path).is_file():
        near = ", ".join(sorted(str(p) for p in Path(path).parent.glob("*.y*ml"))) or "none"
        raise ConfigError(f"there is no file {path}; YAML files there: {near}")
    return validate(_parse(Path(path), "scorers: [{type: motion}]"), FleetConfig)


def validate(values: Mapping[str, Any], schema: type[T]) -> T:
    try:
        return schema.model_validate(values)
    except ValidationError as error:
        lines = [_explain(schema, tuple(e["loc"]), e["type"], e["msg"], e.get("input")) for e in error.errors()]
        raise ConfigError("\n".join(lines)) from None


def dump_recipe(config: RecipeConfig) -> str:
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def shipped_recipes() -> dict[str, Traversable]:
    """Return the files of the recipes that come with this package, by the name of the recipe."""
    found = [item for item in files("sage_grpo").joinpath("recipes").iterdir() if item.name.endswith(".yaml")]
    return {item.name.removesuffix(".yaml"): item for item in sorted(found, key=lambda item: item.name)}


def _read(path: Path) -> dict[str, Any]:
    return _extended(_settings(path), path.parent, (path.resolve(),))


def current_key(key: str) -> str:
    """Return the current name of the setting `key`, and log a warning if `key` is its name in earlier versions."""
    new = RENAMED_KEYS.get(key, key)
    if new != key:
        _warn_renamed(key, new)
    return new


@cache  # once per process, and on one process of a run
def _warn_renamed(old: str, new: str) -> None:
    if os.environ.get("RANK", "0") == "0":
        logging.getLogger(__name__).warning("%s is now %s; the next release no longer reads the old name", old, new)


def _with_current_keys(values: dict[str, Any]) -> dict[str, Any]:
    out = dict(values)
    for old in RENAMED_KEYS:
        section, name = old.split(".")
        settings = out.get(section)
        if isinstance(settings, dict) and name in settings:
            new = current_key(old).removeprefix(f"{section}.")
            if new in settings:
                raise ConfigError(f"{old} is the old name of {section}.{new}, and both are set; remove {old}")
            out[section] = {(new if key == name else key): value for key, value in settings.items()}
    for scorers in ("rewards", "monitors"):
        if isinstance(out.get(scorers), list):
            out[scorers] = [_with_current_options(entry) for entry in out[scorers]]
    return out


def _with_current_options(entry: Any) -> Any:
    options = entry.get("options") if isinstance(entry, dict) and entry.get("type") == "http" else None
    if not isinstance(options, dict) or "hears" not in options:
        return entry
    _warn_renamed("hears", "uses_audio")
    rest = {name: value for name, value in options.items() if name != "hears"}
    return entry | {"options": {"uses_audio": options["hears"], **rest}}


def _extended(values: dict[str, Any], folder: Path, before: tuple[Path, ...]) -> dict[str, Any]:
    """Return settings, filled up from the recipe that they extend: a shipped one, or a file in `folder`."""
    values = _with_current_keys(values)
    if "extends" not in values:
        return values
    name = values.pop("extends")
    if not isinstance(name, str):
        raise ConfigError(f"extends: {str(name)[:50]!r} is no text; write the name of one recipe or file, such as lab")
    base = folder / name if (folder / name).is_file() else Path(name)
    whole = base.resolve()
    if whole in before:
        raise ConfigError(f"extends: {' → '.join(map(str, (*before, whole)))} goes round in circles")
    return _merged(_extended(_settings(base), base.parent, (*before, whole)), values)


def _merged(base: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with `values` put over it. Sections are merged; values and lists replace those of `base`."""
    both = {key: (base[key], value) for key, value in values.items() if key in base}
    sections = {key: _merged(*pair) for key, pair in both.items() if all(isinstance(part, dict) for part in pair)}
    return {**base, **values, **sections}


def _settings(path: Path) -> dict[str, Any]:
    source: Path | Traversable = path if path.is_file() else shipped_recipes().get(str(path), path)
    if not source.is_file():
        folder = path.parent if path.parent.is_dir() else Path()
        names = {p.name: str(folder / p.name) for p in folder.glob("*.y*ml")} | {n: n for n in shipped_recipes()}
        close = nearest(path.name, names)
        hint = f"did you mean {names[close]}?" if close else f"shipped recipes: {', '.join(shipped_recipes())}"
        raise ConfigError(f"there is no recipe {path}; {hint}")
    return _parse(source, "policy: {clip: 1e-4}")


def _parse(path: Path | Traversable, example: str) -> dict[str, Any]:
    try:
        values = read_yaml(path.read_text())
    except (YamlError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid YAML: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path} holds no settings: they are a YAML mapping such as `{example}`")
    return values


def _override(values: dict[str, Any], text: str) -> None:
    key, sign, value = text.partition("=")
    if not sign or not key:
        raise ConfigError(f"override {text!r} is not of the form key=value, such as policy.clip=1e-5")
    *path, last = current_key(key).split(".")
    for part in path:
        values = values.setdefault(part, {})
        if not isinstance(values, dict):
            raise ConfigError(f"override {text!r}: {part} is a value, it has no parts")
    # YAML 1.1 reads 1e-5 as text; pydantic turns the text into the number where one is wanted
    try:
        values[last] = read_yaml(value)
    except YamlError as error:
        raise ConfigError(f"override {text[:200]!r}: the value is not valid YAML: {error}") from None


def _explain(schema: type[BaseModel], location: tuple[int | str, ...], kind: str, message: str, value: object) -> str:
    where = ".".join(str(part) for part in location) or "settings"
    if kind == "extra_forbidden":
        if location[-1] in EQUIVALENT:
            return f"{where}: unknown key; {EQUIVALENT[str(location[-1])]}"
        names = _fields_at(schema, location[:-1])
        close = nearest(str(location[-1]), names, cutoff=0.5)
        elsewhere = _find(schema, str(location[-1]))
        here = ".".join([*map(str, location[:-1]), close]) if close else None
        meant = elsewhere if elsewhere and elsewhere.endswith(f".{location[-1]}") else here or elsewhere
        return f"{where}: unknown key; " + (f"did you mean {meant}?" if meant else f"known here: {', '.join(names)}")
    message = message.removeprefix("Value error, ")
    choices = re.findall(r"'([^']+)'", message) if kind == "literal_error" else []
    close = nearest(str(value), choices, cutoff=0.4)
    hint = f"; did you mean {close!r}?" if close else ""
    return f"{where}: {message}" + (f" (got {value!r})" if isinstance(value, str | int | float) else "") + hint


def _fields_at(schema: type[BaseModel], location: Sequence[int | str]) -> list[str]:
    model: Any = schema
    for part in location:
        if isinstance(part, str) and isinstance(model, type) and issubclass(model, BaseModel):
            field = model.model_fields.get(part)
            model = field.annotation if field else None
        if not isinstance(model, type) and getattr(model, "__args__", None):
            model = model.__args__[0]  # the element of a tuple
    return list(model.model_fields) if isinstance(model, type) and issubclass(model, BaseModel) else []


def _find(schema: type[BaseModel], name: str) -> str | None:
    """Return the full key of a setting that the user put on the wrong level, or None."""
    known = {}
    for section, field in schema.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            known.update({key: f"{section}.{key}" for key in field.annotation.model_fields})
    close = nearest(name, known, cutoff=0.8)
    return known[close] if close else None
