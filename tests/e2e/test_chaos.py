"""A lab run killed at a random moment ends bit-equal; `make chaos-alone KILLS=10` does more of it."""

import pytest

from e2e.chaos import chaos

pytestmark = pytest.mark.slow


def test_killed_lab_run_is_bit_equal():
    assert chaos(kills=1, iterations=6) == []
