"""Classes found where they lie: a new scorer or model is one file, and no list names it."""

import inspect
import pkgutil
from importlib import import_module
from types import ModuleType
from typing import Any


def concrete(package: ModuleType, base: Any) -> list[Any]:
    """Every class of a package's modules that is a kind of `base` and can be made."""
    modules = [import_module(f"{package.__name__}.{info.name}") for info in pkgutil.iter_modules(package.__path__)]
    return [
        found
        for module in modules
        for found in vars(module).values()
        if inspect.isclass(found) and found.__module__ == module.__name__
        if issubclass(found, base) and not inspect.isabstract(found)
    ]
