"""Two processes that share one video answer as one does, forward and backward, for every model that can."""

import json
import subprocess

import pytest

pytest.importorskip("diffusers")
pytest.importorskip("peft")

from distributed.launcher import environment, torchrun
from distributed.sequence_worker import PICTURES
from sage_grpo import registry
from sage_grpo.config import ConfigError, load_recipe
from sage_grpo.models.context_parallel import check_sharing, share_by_plan
from sage_grpo.models.loading import ModelError
from sage_grpo.models.wan import Wan
from tiny_models import tiny_model

pytestmark = pytest.mark.slow


def test_sharing_a_video_is_exact(tmp_path):
    file = tmp_path / "found.json"
    command = torchrun(2, "distributed.sequence_worker", file)
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(file.read_text())
    assert set(found) == set(registry.models()) - PICTURES
    assert found["hunyuan15"]["tokens"] == [23, 22]  # they need not divide
    for kind, off in found.items():
        print(f"{kind}: forward {off['forward']:.1e}, gradient {off['gradient']:.1e} ({off['worst']})")
        assert off["forward"] <= 1e-5
        assert off["gradient"] <= 1e-4


def test_what_cannot_be_shared_is_said_with_the_nearest_setting():
    with pytest.raises(
        ModelError, match=r"parallel.sequence=4 does not divide .* 16 heads and 18018 tokens .* use parallel.sequence=2"
    ):
        check_sharing(4, 16, 18018)
    with pytest.raises(ModelError, match=r"sequence=5 does not divide the model's 12 heads; use parallel.sequence=4"):
        check_sharing(5, 12)
    check_sharing(8, 16)
    with pytest.raises(ConfigError, match="ring=4 does not divide sequence=6; use ring=3"):
        load_recipe({"parallel": {"processes": 6, "sequence": 6, "ring": 4}})


def test_blocks_that_diffusers_hooks_into_are_not_compiled():
    compiled = tiny_model(Wan, {"compile": "aot_eager"})
    with pytest.raises(ModelError, match=r"tuning.compile: .* leave tuning.compile out, or use parallel.sequence=1"):
        share_by_plan(compiled.module, [], None, {})
