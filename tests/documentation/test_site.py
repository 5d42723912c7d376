"""The site holds every page, and the page of settings is that of the schema."""

import importlib.util
import re
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

from sage_grpo.config import FleetConfig, RecipeConfig

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FRAGMENTS = {
    "claims/claims.md",
    "audit/made/audit.md",
    "audit/real/audit.md",
    "audit/composite/audit.md",
    "audit/sound/audit.md",
}  # of pages


def load_generator():
    spec = importlib.util.spec_from_file_location("make_configuration", DOCS / "make_configuration.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def entries(nav):
    for item in nav:
        for value in item.values() if isinstance(item, dict) else [item]:
            yield from entries(value) if isinstance(value, list) else [value]


def test_every_page_is_in_the_navigation_once():
    # the file names a Python function for anchors, which a plain reader of YAML need not know
    text = re.sub(r"!!python\S+ \{.*\}", "null", (ROOT / "mkdocs.yml").read_text())
    named = list(entries(yaml.safe_load(text)["nav"]))
    there = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")} - FRAGMENTS
    assert sorted(named) == sorted(there), "mkdocs.yml: nav lists pages that are not there, or leaves some out"


def test_pages_point_only_to_what_the_site_has():
    """A link out of docs/ would work in the repository and be dead on the site: name the file instead."""
    for path in DOCS.rglob("*.md"):
        for target in re.findall(r"\]\(([^)#\s]+)", path.read_text()):
            if "://" not in target:
                assert (path.parent / target).resolve().is_relative_to(DOCS), f"{path.name} points to {target}"
                assert (path.parent / target).is_file(), f"{path.name} points to {target}, which is no file"


def test_settings_page_is_up_to_date():
    made = load_generator()
    assert made.PAGE.read_text() == made.page(), "run: make configuration"


def test_a_changed_schema_is_seen(monkeypatch):
    made = load_generator()
    monkeypatch.setattr(RecipeConfig.model_fields["seed"], "description", "planted")
    assert made.PAGE.read_text() != made.page()


def schemas(schema: type[BaseModel], inner) -> set[type[BaseModel]]:
    below = [inner(field.annotation) for field in schema.model_fields.values()]
    return {schema}.union(*(schemas(found, inner) for found in below if found))


def test_every_setting_has_a_meaning():
    inner = load_generator().inner
    found = schemas(RecipeConfig, inner) | schemas(FleetConfig, inner)
    assert len(found) >= 13
    for schema in found:
        for name, field in schema.model_fields.items():
            assert field.description, f"{schema.__name__}.{name} has no description: give Field(…, description=…)"


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda p: str(p.relative_to(DOCS)))
def test_nothing_is_fetched_when_a_page_is_read(page):
    assert not re.findall(r"!\[[^\]]*\]\(https?:|<(?:img|script|link|iframe)\b", page.read_text())
