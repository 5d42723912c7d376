"""The installed script finds a reward of the user's in the folder it is called in."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(sys.executable).with_name("sage-grpo")


def checked(folder, reward):
    """`train --check` of a recipe with that reward; nothing but the folder itself helps to find it."""
    (folder / "recipe.yaml").write_text(f'rewards: [{{type: "{reward}"}}]\nkl: {{old_weight: 0}}\n')
    done = subprocess.run(
        [SCRIPT, "train", "recipe.yaml", "--check"],
        cwd=folder,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stderr


@pytest.mark.slow
def test_a_reward_next_to_the_recipe(tmp_path):
    (tmp_path / "my_reward.py").write_text("def bright(videos, prompts):\n    return [0.0 for _ in videos]\n")
    assert checked(tmp_path, "my_reward:bright") == (0, "")
    code, said = checked(tmp_path, "your_reward:bright")
    assert code == 2
    assert "put your_reward.py into the folder you are in, or install it" in said.replace("\n", " ")


@pytest.mark.slow
def test_a_file_there_hides_no_library(tmp_path):
    (tmp_path / "yaml.py").write_text("raise SystemExit('the wrong yaml')\n")
    (tmp_path / "my_reward.py").write_text("def bright(videos, prompts):\n    return [0.0 for _ in videos]\n")
    assert checked(tmp_path, "my_reward:bright") == (0, "")
