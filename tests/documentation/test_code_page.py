"""The page on reading the code names files that exist, and the floors that the test of floors holds."""

import re

from arch.test_floors import FLOORS
from documentation.blocks import ROOT

PAGE = (ROOT / "docs" / "code.md").read_text()
SECTIONS = dict(re.findall(r"^## (.+)\n((?:.*\n)*?)(?=## |\Z)", PAGE, re.M))
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()


def first_column(section: str) -> list[str]:
    return re.findall(r"^\| `(\S+)` \|", section, re.M)


def test_six_files_are_named_and_contributors_are_told_the_same():
    files = first_column(SECTIONS["Read these six files first"])
    assert len(files) == 6
    told = re.findall(r"^\d\. `(\S+)`", CONTRIBUTING, re.M)
    assert [f"src/sage_grpo/{name}" for name in told] == files


def test_each_is_read_in_one_sitting():
    lengths = {
        name: len((ROOT / name).read_text().splitlines())
        for name in first_column(SECTIONS["Read these six files first"])
    }
    assert max(lengths.values()) < 250, lengths


def test_each_file_needs_only_those_before_it():
    """Of the six: what comes later in the list is imported by nobody above it."""
    files = first_column(SECTIONS["Read these six files first"])
    modules = [name.removeprefix("src/").removesuffix(".py").replace("/", ".") for name in files]
    for place, name in enumerate(files):
        source = (ROOT / name).read_text()
        assert not [later for later in modules[place + 1 :] if f"from {later} import" in source]


def test_floors_are_those_of_the_test():
    rows = re.findall(r"^\| (\d+) \| ([^|]+) \|", SECTIONS["Floors"], re.M)
    shown = {name: int(floor) for floor, names in rows for name in re.findall(r"`([\w/]+)`", names)}
    assert shown == FLOORS
    assert [int(floor) for floor, _ in rows] == sorted(set(FLOORS.values()), reverse=True)


def test_every_path_exists():
    named = re.findall(r"`((?:src|tests)/[\w/.]+)`", PAGE)
    assert len(named) > 15
    assert not [name for name in named if not (ROOT / name).exists()]
