"""Cases of a test that CI leaves to `make sweeps`: it has run the same test with others."""

import pytest


def further(*values, id=None):
    return pytest.param(*values, id=id, marks=pytest.mark.sweep)
