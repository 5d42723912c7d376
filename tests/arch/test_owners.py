"""One idea has one owner: what is spelled out elsewhere has got a second one."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "src" / "sage_grpo"
OWNERS = {
    "names in a run folder": (
        "runs/folder.py",
        r'"(config\.yaml|metrics\.jsonl|end\.json|environment\.json|prompts\.json|step-)"',
    ),
    "a file that is whole or not there": ("files.py", r"os\.replace\(|mkstemp|NamedTemporaryFile"),
    "YAML that is read": ("config/yaml_text.py", r"yaml\.SafeLoader|yaml\.safe_load\("),
    "the nearest name": ("suggest.py", r"get_close_matches"),
    "a score that is not finite": ("core/scores.py", r"valid\S* & \S*\.isfinite"),
}


@pytest.mark.parametrize("idea", OWNERS)
def test_one_owner(idea):
    owner, pattern = OWNERS[idea]
    places = {str(p.relative_to(ROOT)) for p in ROOT.rglob("*.py") if re.search(pattern, p.read_text())}
    assert places == {owner}
