"""A lab run killed at random moments ends bit-equal; `make chaos KILLS=10` does more of it."""

import pytest

from e2e.chaos import chaos

pytestmark = pytest.mark.slow


def test_killed_lab_run_is_bit_equal():
    assert chaos(kills=2, iterations=8) == []
