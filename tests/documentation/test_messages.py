"""Every message that docs/troubleshooting.md quotes stands in the source, word for word."""

import ast
from functools import cache
from pathlib import Path

import pytest

from documentation.blocks import ROOT, blocks
from documentation.messages import GAP, template

PAGE = ROOT / "docs" / "troubleshooting.md"
QUOTED = [line for block in blocks(PAGE) if block.language == "text" for line in block.code.splitlines() if line]


@cache
def strings() -> list[str]:
    trees = [ast.parse(path.read_text()) for path in sorted((ROOT / "src").rglob("*.py"))]
    return [text for tree in trees for node in ast.walk(tree) if (text := template(node)) and len(text) > 8]


def stands_in(quoted: str, text: str) -> bool:
    """The fixed parts of a quotation follow one another in the text."""
    place = 0
    for part in (p.strip() for p in quoted.split(GAP)):
        found = text.find(part, place)
        if found < 0:
            return False
        place = found + len(part)
    return True


def known(quoted: str) -> bool:
    return any(stands_in(quoted, text) for text in strings())


@pytest.mark.slow
@pytest.mark.parametrize("quoted", QUOTED)
def test_a_quoted_message_is_printed_somewhere(quoted):
    assert known(quoted)


@pytest.mark.parametrize("planted", ["nothing is trained: every parameter is frozen", "no such sentence at all …"])
def test_a_wrong_quotation_is_seen(planted):
    assert not known(planted)


def test_there_are_enough():
    assert len(QUOTED) >= 30
    assert Path(PAGE).read_text().count("\n## ") >= 9
