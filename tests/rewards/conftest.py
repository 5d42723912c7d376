"""A toy VideoAlign, as released and converted."""

import pytest

from sage_grpo.rewards.videoalign.convert import convert
from videoalign_original import release, weights


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("videoalign")
    source, _ = release(place, weights(1))
    convert(source, place / "converted")
    return place / "converted"


@pytest.fixture
def source(tmp_path):
    return release(tmp_path, weights(1))[0]
