"""Around the code: workflows call commands that exist, templates are forms, the citation is this version."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest
import yaml

import sage_grpo

ROOT = Path(__file__).parents[2]
GITHUB = ROOT / ".github"
FILES = sorted(path for ending in ("yml", "yaml") for path in GITHUB.rglob(f"*.{ending}"))
RUNS = sorted([*GITHUB.glob("workflows/*.yml"), *GITHUB.glob("actions/*/action.yml")])
TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
HOMEPAGE = "https://github.com/sage-grpo/sage-grpo"


def short(path):
    return str(path.relative_to(ROOT))


def read(path):
    return yaml.safe_load(path.read_text())


def steps(path):
    content = read(path)
    jobs = content["jobs"].values() if "jobs" in content else [content["runs"]]
    return [step for job in jobs for step in job["steps"]]


def faults(command: str) -> list[str]:
    """What a line of a workflow names and we do not have."""
    found = []
    for line in re.split(r"&&|\n", command):
        words = shlex.split(re.sub(r"\$\{\{.*?\}\}", "", line), comments=True)
        if words[:1] == ["make"]:
            found += [w for w in words[1:] if "=" not in w and not w.startswith("-") and w not in TARGETS]
        found += [w for w in words if w.startswith("tests/") and not (ROOT / w).exists()]
        if "pip" in words and "constraints.txt" not in words:
            found.append("installs something unpinned")
    return found


@pytest.mark.parametrize("path", FILES, ids=short)
def test_files_are_yaml(path):
    assert isinstance(read(path), dict)


@pytest.mark.parametrize("path", RUNS, ids=short)
def test_what_a_workflow_calls_exists(path):
    for step in steps(path):
        assert not faults(step.get("run", "")), step
        used = step.get("uses", "")
        if used.startswith("./"):
            assert (ROOT / used / "action.yml").is_file(), used
            given = set(step.get("with", {}))
            assert given <= set(read(ROOT / used / "action.yml")["inputs"])
            assert step.get("with", {}).get("target", "setup") in TARGETS


@pytest.mark.parametrize("planted", ["make quik", "make docs whel", "pytest tests/modles", "pip install ruff"])
def test_a_wrong_command_is_seen(planted):
    assert faults(planted)


def moving(text: str) -> list[str]:
    """Actions that are not pinned to a commit, with the release that it is: a tag can be moved to other code."""
    used = re.findall(r"^\s*(?:- )?uses: (.+)$", text, re.M)
    return [
        u for u in used if not u.startswith("./") and not re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", u)
    ]


@pytest.mark.parametrize("path", RUNS, ids=short)
def test_actions_are_pinned_to_a_commit(path):
    assert moving(path.read_text()) == []


def test_a_moving_action_is_seen():
    text = "\n".join(path.read_text() for path in RUNS)
    assert "uses: actions/checkout@" in text
    assert len(moving(re.sub(r"@[0-9a-f]{40} #", "@", text, count=1))) == 1
    assert moving(text.replace(" # v", " # "))


@pytest.mark.parametrize("path", sorted(GITHUB.glob("workflows/*.yml")), ids=short)
def test_a_workflow_may_only_read_and_ends(path):
    content = read(path)
    assert content["permissions"] == {"contents": "read"}
    assert True in content or "on" in content  # YAML 1.1 reads `on` as true
    for name, job in content["jobs"].items():
        assert job["timeout-minutes"] <= 180, name
        assert set([job.get("needs")] if job.get("needs") else []) <= set(content["jobs"])


def left_out(event: str, workflows: list[dict], makefile: str) -> list[str]:
    """What is promised for an event and its jobs do not run, with the recipes of `make` in place of their targets."""
    lines = []
    for content in workflows:
        if event in (content.get(True) or content.get("on")):
            lines += [step["run"] for job in content["jobs"].values() for step in job["steps"] if "run" in step]
    targets = {word for line in lines if line.startswith("make") for word in line.split()[1:]}
    targets |= {
        word for t in targets for word in re.findall(rf"^{t}: *([\w -]*)#", makefile, re.M) for word in word.split()
    }
    recipes = dict(re.findall(r"^([\w-]+):.*\n((?:\t.*\n)*)", makefile, re.M))
    tests = [line for t in targets for line in recipes.get(t, "").splitlines() if "-m pytest" in line]
    tests = [line for line in tests if "tests/" not in line]  # one that names a folder runs that one alone
    return [marks for marks in PROMISED[event] if not any(marks in line for line in tests)]


PROMISED = {  # by event: words of a call of pytest over all folders
    "pull_request": ["-q -r fE", "-m 'not sweep' --affected"],  # the quick tests, which are the default, and the others
    "push": ["SAGE_GRPO_ALL=1 $(PYTHON) -m pytest -m 'not sweep'"],
    "schedule": ["SAGE_GRPO_ALL=1 $(PYTHON) -m pytest -m 'not sweep'", "-m sweep"],
}
WORKFLOWS = [path.read_text() for path in GITHUB.glob("workflows/*.yml")]
MAKEFILE = (ROOT / "Makefile").read_text()


@pytest.mark.parametrize("event", PROMISED)
def test_a_workflow_runs_every_folder_of_tests(event):
    """On a pull request what the change can affect, on main everything but sweeps, every night sweeps as well."""
    assert not left_out(event, [yaml.safe_load(text) for text in WORKFLOWS], MAKEFILE)
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    assert settings["testpaths"] == ["tests"]
    assert "-m 'not slow and not sweep'" in settings["addopts"]


@pytest.mark.parametrize(
    ("event", "old", "new"),
    [
        ("pull_request", "make affected", "make prose"),
        ("push", "make check", "make lint"),
        ("schedule", "make sweeps", "make docs"),
        ("schedule", "-m pytest -m sweep", "-m pytest tests/models -m sweep"),
        ("push", "-m pytest -m 'not sweep' -n", "-m pytest tests/models -m 'not sweep' -n"),
    ],
)
def test_a_folder_that_is_left_out_is_seen(event, old, new):
    assert old in MAKEFILE + "".join(WORKFLOWS)
    planted = [yaml.safe_load(text.replace(old, new)) for text in WORKFLOWS]
    assert left_out(event, planted, MAKEFILE.replace(old, new))


@pytest.mark.parametrize("path", sorted(GITHUB.glob("ISSUE_TEMPLATE/*.yml")), ids=short)
def test_issue_forms_are_whole(path):
    content = read(path)
    if path.stem == "config":
        assert all(link["url"].startswith(HOMEPAGE) for link in content["contact_links"])
        return
    assert content["name"]
    assert content["description"]
    ids = [part["id"] for part in content["body"]]
    assert len(ids) == len(set(ids))
    for part in content["body"]:
        assert part["type"] in {"textarea", "input", "dropdown", "checkboxes"}
        assert part["attributes"]["label"]
        for page in re.findall(r"docs/[\w-]+\.md", str(part)):
            assert (ROOT / page).is_file(), page


def test_the_citation_is_this_version():
    citation = read(ROOT / "CITATION.cff")
    assert citation["version"] == sage_grpo.__version__
    assert citation["repository-code"] == HOMEPAGE
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert citation["license"] == project["license"]
    assert [author["name"] for author in citation["authors"]] == [author["name"] for author in project["authors"]]
    assert project["urls"]["Repository"] == HOMEPAGE


def test_the_paper_is_cited_as_on_its_page():
    """`CITATION.cff` prefers the paper, with the authors, title and number of the BibTeX entry in docs/paper.md."""
    entry = dict(re.findall(r"^  (\w+)=\{(.*)\}", (ROOT / "docs" / "paper.md").read_text(), re.M))
    paper = read(ROOT / "CITATION.cff")["preferred-citation"]
    authors = [f"{author['family-names']}, {author['given-names']}" for author in paper["authors"]]
    assert len(authors) == 12
    assert authors == entry["author"].split(" and ")
    assert {name: str(paper[name]) for name in ("title", "journal", "year")} | {"author": entry["author"]} == entry
    assert paper["journal"].endswith(f":{paper['url'].rpartition('/')[2]}")


@pytest.mark.parametrize("name", ["SECURITY.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md"])
def test_links_of_the_pages_around_exist(name):
    for target in re.findall(r"\]\(([^)#\s]+)", (ROOT / name).read_text()):
        assert target.startswith("https://") or (ROOT / target).exists(), target
