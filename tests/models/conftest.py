"""Tiny checkpoints of every adapter, made once for all workers."""

import pytest

from once import once


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    """The folder of an adapter's tiny checkpoint."""
    from sage_grpo.models import contract

    def get(adapter):
        return str(
            once(tmp_path_factory, f"tiny-{adapter.__name__}", lambda out: contract.make_checkpoint(adapter, out))
        )

    return get
