"""Models and rewards by name: those of this package, those of installed plug-ins, and those that your modules register.

A decorator above a class gives it its name, such as `@reward("ocr", extra="ocr")`. The names of built-in classes are
read from the text of their files. Importing all of these files would take seconds, and some need libraries that may be
on other machines only.

A plug-in is an installed package with entry points in the groups `sage_grpo.models`, `sage_grpo.rewards`,
`sage_grpo.kernels`, `sage_grpo.objectives` or `sage_grpo.trackers`.
"""

import ast
import inspect
import re
import sys
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, requires, version
from pathlib import Path
from typing import Any, Literal, TypeVar

from packaging.requirements import Requirement

from sage_grpo.config import ConfigError, RecipeConfig, load_recipe
from sage_grpo.suggest import did_you_mean

Kind = Literal["model", "reward"]
C = TypeVar("C", bound=Callable[..., Any])
ROOT = Path(__file__).parent
PLACE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
ROOMS = {"model": ("models", "lab"), "reward": ("rewards", "lab")}  # where they are defined
_OWN: dict[Kind, dict[str, Any]] = {"model": {}, "reward": {}}  # registered outside of this package


def model(name: str, *, extra: str | None = None) -> Callable[[C], C]:
    """Register a model for use in recipes: put `@model("mine")` above a model class, or a function that makes a model.

    Args:
        name: The name that recipes give in `model.type`.
        extra: For a built-in model, the extra of `sage-grpo` that installs the libraries that the model needs.

    Examples:
        >>> from sage_grpo import model
        >>> from sage_grpo.lab.shapes.model import ShapesModel
        >>> @model("slow-shapes")
        ... class SlowShapes(ShapesModel):
        ...     frame_rate = 4.0
        >>> resolve_model("slow-shapes").frame_rate
        4.0
    """
    return lambda made: _register("model", name, made)


def reward(name: str, *, extra: str | None = None, install: str | None = None) -> Callable[[C], C]:
    """Register a reward for use in recipes: put `@reward("mine")` above a reward class or a scoring function.

    Args:
        name: The name that recipes give in `rewards[].type`.
        extra: For a built-in reward, the extra of `sage-grpo` that installs the libraries that the reward needs.
        install: For a built-in reward, the command that installs its library, if an extra would install too much.

    Examples:
        >>> from sage_grpo import reward
        >>> @reward("brightness")
        ... def brightness(videos, prompts):
        ...     return videos.float().mean((1, 2, 3, 4))
        >>> resolve_reward("brightness") is brightness
        True
    """
    return lambda made: _register("reward", name, made)


def _register(kind: Kind, name: str, made: C) -> C:
    module, attribute = made.__module__, made.__qualname__
    if module.startswith("sage_grpo."):
        return made  # its name is read from its file
    other = {"model": models, "reward": rewards}[kind]().get(name)
    if other is not None:
        raise ConfigError(f"{kind} {name!r} is built in; give {module}:{attribute} another name")
    known = _OWN[kind].get(name, made)
    if (known.__module__, known.__qualname__) != (module, attribute):
        raise ConfigError(
            f"{kind} {name!r} is registered twice, by {known.__module__}:{known.__qualname__} and {module}:{attribute}"
        )
    _OWN[kind][name] = made
    return made


def installed(kind: str) -> dict[str, EntryPoint]:
    """Return the entry points of one `kind` in installed plug-ins, by name.

    The `kind` is "model", "reward", "kernel", "objective" or "tracker".
    """
    return {point.name: point for point in entry_points(group=f"sage_grpo.{kind}s")}


def load_plugins(config: RecipeConfig, *, trackers: bool = False) -> None:
    """Import the modules in `run.imports`, and installed plug-ins that provide the recipe's kernel or objective.

    Call this function only for a recipe that the user chose, because importing a module runs its code. With `trackers`,
    plug-ins for its trackers are imported too; only training needs them.

    Raises:
        ConfigError: A module cannot be imported, or a plug-in does not register the name of its entry point.
    """
    for module in config.run.imports:
        _import(module, f"run.imports: {module}")
    from sage_grpo.math.kernels import KERNELS  # noqa: PLC0415
    from sage_grpo.math.objectives import OBJECTIVES  # noqa: PLC0415
    from sage_grpo.runs.tracker import TRACKERS  # noqa: PLC0415 - torch, which the names alone do not need

    registered: tuple[tuple[str, str, Mapping[str, Any]], ...] = (
        ("kernel", config.sampling.kernel, KERNELS),
        ("objective", config.policy.objective, OBJECTIVES),
        *(("tracker", name, TRACKERS) for name in config.run.trackers if trackers),
    )
    for kind, name, known in registered:
        if name not in known and (point := installed(kind).get(name)):
            _import(point.module, f"the installed {kind} {name!r}")
            if name not in known:
                raise ConfigError(f"the installed {kind} {name!r}: {point.module} registers no {kind} of that name")


def load_trusted_recipe(source: str | Path | Mapping[str, Any], overrides: Sequence[str] = ()) -> RecipeConfig:
    """Return a recipe that the user chose, as `load_recipe` does, and import the modules that it names."""
    config = load_recipe(source, overrides)
    load_plugins(config)
    return config


def _import(module: str, said: str) -> None:
    try:
        import_module(module)
    except ConfigError:
        raise
    except Exception as error:
        name = module.partition(".")[0]
        missing = isinstance(error, ModuleNotFoundError) and error.name == name
        fix = f"; put {name}.py into the folder you are in, or install it" if missing else ""
        raise ConfigError(f"{said} cannot be imported: {type(error).__name__}: {error}{fix}") from error


@dataclass(frozen=True)
class Registered:
    name: str
    module: str
    attribute: str
    extra: str | None = None
    install: str | None = None

    @property
    def target(self) -> str:
        return f"{self.module}:{self.attribute}"

    @property
    def install_line(self) -> str | None:
        return self.install or (f"pip install 'sage-grpo[{self.extra}]'" if self.extra else None)

    @property
    def missing(self) -> str | None:
        """The first package that this model or reward needs and that is not installed; None if none is missing."""
        needed = [Requirement(self.install.split()[-1]).name] if self.install else packages_of(self.extra)
        return next((name for name in needed if installed_version(name) is None), None)


@cache
def models() -> dict[str, Registered]:
    return _read("model")


@cache
def rewards() -> dict[str, Registered]:
    return _read("reward")


def resolve_model(name: str) -> Any:
    """Return the model class, or the function that returns a model, that has this name in recipes.

    The name is that of a built-in model, of one registered by `@model`, or of a plug-in's entry point. It may also be a
    place in an installed package, as `package.module:attribute`.
    """
    return _resolve("model", name, models())


def resolve_reward(name: str) -> Any:
    """Return the reward class, function that returns a reward, or scoring function that has this name in recipes.

    Names have the same forms as in `resolve_model`.
    """
    return _resolve("reward", name, rewards())


def packages_of(extra: str | None) -> list[str]:
    """Return the names of the packages that an extra of `sage-grpo` needs.

    The list is empty if `extra` is None, or if `sage-grpo` runs from a folder without being installed.
    """
    try:
        asked = [Requirement(line) for line in requires("sage-grpo") or ()] if extra else []
    except PackageNotFoundError:
        return []
    return [r.name for r in asked if r.marker and r.marker.evaluate({"extra": extra or ""})]


def installed_version(package: str) -> str | None:
    """Return the version of a package, or None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _read(kind: Kind) -> dict[str, Registered]:
    found: dict[str, Registered] = {}
    for room in ROOMS[kind]:
        for path in sorted((ROOT / room).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            if f"@{kind}(" in text:
                module = ".".join(("sage_grpo", *path.relative_to(ROOT).with_suffix("").parts))
                found |= {entry.name: entry for entry in _entries(kind, module, text)}
    return dict(sorted(found.items()))


def _entries(kind: Kind, module: str, text: str) -> Iterator[Registered]:
    for node in (node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)):
        for mark in node.decorator_list:
            if isinstance(mark, ast.Call) and isinstance(mark.func, ast.Name) and mark.func.id == kind:
                given = {str(k.arg): ast.literal_eval(k.value) for k in mark.keywords}
                yield Registered(ast.literal_eval(mark.args[0]), module, node.name, **given)


def _resolve(kind: Kind, name: str, known: dict[str, Registered]) -> Any:
    built_in = known.get(name)
    if not built_in and name in _OWN[kind]:
        return _checked(kind, name, _OWN[kind][name], own=True)
    plugins = {} if built_in else installed(kind)
    target = built_in.target if built_in else plugins[name].value if name in plugins else name
    module, sign, attribute = target.partition(":")
    if not sign:
        raise ConfigError(
            f"{kind} {name!r} is not known; {did_you_mean(name, {**known, **_OWN[kind], **plugins})} "
            "Your own: package.module:factory, or a name that a module in run.imports registers"
        )
    if not built_in and name not in plugins and not PLACE.fullmatch(name):
        raise ConfigError(f"{kind} {name!r} names no place in a package; write package.module:name")
    try:
        made: Any = import_module(module)
        for part in attribute.split("."):
            made = getattr(made, part)
    except ModuleNotFoundError as error:
        if built_in and built_in.install_line and not (error.name or "").startswith("sage_grpo"):
            raise ConfigError(f"{kind} {name!r} needs {error.name}: {built_in.install_line}") from error
        missing = not built_in and error.name == module.partition(".")[0]
        fix = f"; put {error.name}.py into the folder you are in, or install it" if missing else ""
        raise ConfigError(f"{kind} {name!r} cannot be imported: {error}{fix}") from error
    except (ImportError, AttributeError) as error:
        old = (
            f"; is a library too old? pip install -U 'sage-grpo[{built_in.extra}]'"
            if built_in and built_in.extra and kind == "model"
            else ""
        )
        raise ConfigError(f"{kind} {name!r} cannot be imported: {error}{old}") from error
    return _checked(kind, name, made, own=not built_in)


def _checked(kind: Kind, name: str, made: Any, *, own: bool) -> Any:
    if inspect.isabstract(made):
        raise ConfigError(f"{kind} {name!r} is incomplete; define {', '.join(sorted(made.__abstractmethods__))}")
    if own:
        _refuse_strangers(kind, name, made)
    return made


def makes(function: Any, wanted: type) -> bool:
    """Return whether a function is annotated with the return type `wanted` or a subclass, such as `-> Reward`.

    Such a function is a factory. Any other function is not called for an object, because it may do something else.
    """
    try:
        own = inspect.isfunction(function) or inspect.ismethod(function)
        returned = typing.get_type_hints(function).get("return") if own else None
    except (NameError, TypeError):  # an annotation that cannot be looked up
        return False
    return isinstance(returned, type) and issubclass(returned, wanted)


def _refuse_strangers(kind: Kind, name: str, made: Any) -> None:
    """Raise a ConfigError if `made` neither is nor makes a model or reward.

    Otherwise a recipe could call any function of any package, with the options that the recipe gives.
    """
    from sage_grpo.core.reward import Reward  # noqa: PLC0415 - torch, which the names alone do not need
    from sage_grpo.core.video_model import VideoModel  # noqa: PLC0415 - torch, which the names alone do not need

    wanted = {"model": VideoModel, "reward": Reward}[kind]
    if inspect.isclass(made):
        fits = issubclass(made, wanted)
    else:
        own = inspect.isfunction(made) and made.__module__.partition(".")[0] not in sys.stdlib_module_names
        plain = kind == "reward" and (own or isinstance(made, Reward))
        fits = plain or makes(made, wanted)
    if fits:
        return
    word, base = {"model": ("a video model", "VideoModel"), "reward": ("a reward", "Reward")}[kind]
    functions = f"a function that ends its first line with `-> {base}`"
    more = f", a function of videos and prompts, or {functions}" if kind == "reward" else f" or {functions}"
    raise ConfigError(
        f"{kind} {name!r} is not called: {getattr(made, '__name__', type(made).__name__)} is neither {word} nor makes "
        f"one; write a class ({base}), after `from sage_grpo import {base}`{more}"
    )
