"""Prompts encoded ahead by two processes: the same weights to the bit as when each encodes what it meets."""

import pytest
import torch

from distributed.test_processes import launch, result


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_processes_with_prompts_encoded_ahead(tmp_path):
    launch(tmp_path, 2, "hunyuan15-lora:2", "hunyuan15-as-needed:2")
    ahead, as_needed = result(tmp_path, "hunyuan15-lora-2"), result(tmp_path, "hunyuan15-as-needed-2")
    assert all(torch.equal(x, ahead["weights"][name]) for name, x in as_needed["weights"].items())
