"""Packages that tests need, and a checkout may lack."""

from importlib.util import find_spec

import pytest


def need_files_of(*packages):
    """Skips the module where one is missing. `pytest.importorskip` will not do where only a package's files are used:
    to import it would need libraries that we never ask for."""
    for package in packages:
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed", allow_module_level=True)
