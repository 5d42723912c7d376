import pytest

from sage_grpo.evaluation.study.make import DIMENSIONS, choose_pairs, from_eval, make_study
from sage_grpo.evaluation.study.plan import Dimension, read_plan
from study.client import Client
from study.material import write_eval


@pytest.fixture(scope="session")
def evaluated(tmp_path_factory):
    return write_eval(tmp_path_factory.mktemp("eval"))


@pytest.fixture
def dimensions():
    return [Dimension(key=key, name=name, question=question) for key, (name, question) in DIMENSIONS.items()]


@pytest.fixture
def make(evaluated, tmp_path, dimensions):
    def plan_study(out="study", method="methodzeta", against=None, **changes):
        sources, items = from_eval(evaluated)
        options = {
            "prompts": 32,
            "dimensions": dimensions,
            "checks": 2,
            "per_rater": None,
            "max_failed": 0.34,
            "seed": 0,
            "title": "Which is better?",
        }
        make_study(tmp_path / out, sources, items, choose_pairs(sources, method, against), **options | changes)
        return (tmp_path / out, *read_plan(tmp_path / out))

    return plan_study


@pytest.fixture
def start():
    running = []

    def started(*study, **options):
        running.append(Client(*study, **options))
        return running[-1]

    yield started
    for client in running:
        client.close()
