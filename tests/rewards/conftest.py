"""A toy VideoAlign, as released and converted. Its libraries are asked for here alone: most rewards need none."""

import pytest


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    from sage_grpo.rewards.videoalign.convert import convert
    from videoalign_original import release, weights

    place = tmp_path_factory.mktemp("videoalign")
    source, _ = release(place, weights(1))
    convert(source, place / "converted")
    return place / "converted"


@pytest.fixture
def source(tmp_path):
    from videoalign_original import release, weights

    return release(tmp_path, weights(1))[0]
