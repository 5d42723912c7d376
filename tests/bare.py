"""pytest as on a checkout with only `pip install -e .` and pytest: `python -m bare [PYTEST'S WORDS…]`.

Whatever else this environment has cannot be imported, so nothing needs to be installed; `make bare` does it for real.
"""

import importlib.metadata
import os
import sys
from importlib.machinery import PathFinder

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOTS = ("sage-grpo", "pytest")


def brought(roots=ROOTS):
    """Names of the distributions that these ask for, directly or not, without extras."""
    found, queue = set(), [(name, ()) for name in roots]
    while queue:
        name, extras = queue.pop()
        if (name, extras) in found:
            continue
        found.add((name, extras))
        try:
            lines = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue  # for another system than this
        for asked in map(Requirement, lines):
            if asked.marker is None or any(asked.marker.evaluate({"extra": extra}) for extra in extras or ("",)):
                queue.append((canonicalize_name(asked.name), tuple(sorted(asked.extras))))
    return {name for name, _ in found}


def hidden(roots=ROOTS):
    """Names of modules that only other distributions have."""
    there = brought(roots)
    return {
        module
        for module, owners in importlib.metadata.packages_distributions().items()
        if not any(canonicalize_name(owner) in there for owner in owners)
    }


class Without(PathFinder):
    """Finds what is on the path except `names`, as if they were not installed."""

    names: frozenset[str] = frozenset()

    @classmethod
    def find_spec(cls, fullname, path=None, target=None):
        if fullname.partition(".")[0] in cls.names:
            return None
        return super().find_spec(fullname, path, target)


def main():
    Without.names = frozenset(hidden())
    sys.meta_path[sys.meta_path.index(PathFinder)] = Without
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # plugins are found without an import
    sys.exit(pytest.main(sys.argv[1:]))


if __name__ == "__main__":
    main()
