"""Tests share what plans count: the same numbers, counted once, and again where a setting differs."""

import pytest

import shared_plans


def test_it_is_counted_once_for_all_processes(tmp_path):
    counted = []

    def look(settings):
        counted.append(settings)
        return {"of": settings}

    first, second = (shared_plans.shared(look, tmp_path) for _ in range(2))
    assert first("a") == second("a") == {"of": "a"}
    assert first("b") == {"of": "b"}
    assert counted == ["a", "b"]
    assert len(list(tmp_path.iterdir())) == 2


def test_what_fails_is_not_kept(tmp_path):
    def look(settings):
        raise ValueError(settings)

    for _ in range(2):
        with pytest.raises(ValueError, match="a"):
            shared_plans.shared(look, tmp_path)("a")
    assert not list(tmp_path.iterdir())


def test_the_functions_are_there():
    estimate = pytest.importorskip("sage_grpo.preflight.plan.estimate", exc_type=ImportError)
    assert all(callable(getattr(estimate, name)) for name in shared_plans.COUNTED)
