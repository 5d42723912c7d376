"""The fenced blocks of a page, and what its command lines ask of the software."""

import re
import shlex
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
import yaml

from research.__main__ import app as research
from sage_grpo.cli import app
from sage_grpo.config import load_recipe
from sage_grpo.config.load import shipped_recipes

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
MARK = re.compile(r"(Needs|Takes) \w")  # hardware, the network, a checkpoint, your files; or time
FENCE = re.compile(
    r"(?:<!-- ci: (?P<ci>.*?) -->\n+)?^```(?P<language>\w+)(?: title=\"(?P<title>[^\"]*)\")?\n(?P<code>.*?)^```$",
    re.M | re.S,
)
OTHERS = {
    "git",
    "hf",
    "unzip",
    "envsubst",
    "export",
    "cd",
    "docker",
    "kubectl",
    "sbatch",
    "tensorboard",
    "ray",
}  # not ours to check


@dataclass(frozen=True)
class Block:
    language: str
    code: str
    title: str  # a file's name, or what the block needs
    ci: str  # what a test runs instead
    line: int

    @property
    def file(self) -> str:
        return self.title if "." in self.title and not self.mark else ""

    @property
    def mark(self) -> str:
        """What it needs or takes: the title, or in pages without titles a first line of comment."""
        first = self.code.partition("\n")[0].removeprefix("# ")
        return next((text for text in (self.title, first) if MARK.match(text)), "")


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    found = [
        Block(m["language"], m["code"], m["title"] or "", m["ci"] or "", text[: m.start("language")].count("\n") + 1)
        for m in FENCE.finditer(text)
    ]
    assert len(found) == len(re.findall(r"^```\w+", text, re.M)), f"{page.name}: a fence that is not understood"
    return found


def commands(code: str) -> list[list[str]]:
    """The words of each command line, without comments, environment and chains."""
    found: list[list[str]] = []
    for line in code.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        while words:
            end = next((i for i, word in enumerate(words) if word in ("&&", "|", ";", "&")), len(words))
            command, words = words[:end], words[end + 1 :]
            while command and re.fullmatch(r"[A-Z_]+=.*", command[0]):
                command = command[1:]
            if command:
                found.append(command)
    return found


def check(words: list[str], files: dict[str, str], *, whole: bool = True) -> None:
    """A command line that is not run: its options, recipe, settings, extras or target must exist."""
    program = Path(words[0]).name
    if program in ("sage-grpo", "torchrun") or words[:3] == ["python", "-m", "sage_grpo"]:
        start = words.index("sage_grpo") + 1 if "sage_grpo" in words else 1
        if program != "torchrun" or "sage_grpo" in words:  # of torchrun's own options nothing is known here
            check_cli(words[start:], files, whole=whole)
    elif words[:3] == ["python", "-m", "research"]:
        check_cli(words[3:], files, whole=whole, app=research)
    elif words[:2] == ["docker", "run"]:
        check_cli(words[words.index("sage-grpo") + 1 :], files, whole=whole)
    elif program in ("pip", "uv"):
        check_install(words)
    elif program == "make":
        check_target(words[1])
    elif program == "python":
        assert words[1] in ("-m", "-c") or (ROOT / words[1]).is_file(), f"there is no {words[1]}"
    else:
        assert program in OTHERS, f"{program}: a command that this test does not know"


def check_cli(words: list[str], files: dict[str, str], *, whole: bool, app: typer.Typer = app) -> None:
    """As typer would read it, down to the subcommand, without calling it."""
    command: Any = typer.main.get_command(app)
    rest = [word for word in words if word not in ("…", "key=value")]
    name, parent = "sage-grpo", None
    try:
        while True:
            context = command.make_context(name, rest, parent=parent)
            rest = [*getattr(context, "_protected_args", ()), *context.args]
            if not rest or not hasattr(command, "resolve_command"):
                break
            name, command, rest = command.resolve_command(context, rest)
            parent = context
    except Exception as error:  # typer brings its own click, whose classes have no public place
        unfinished = ("MissingParameter", "NoArgsIsHelpError")
        if type(error).__name__ == "Exit" or (type(error).__name__ in unfinished and not whole):
            return
        raise
    if "recipe" in context.params:
        check_recipe(str(context.params["recipe"]), context.params.get("overrides") or [], files)


def check_recipe(name: str, settings: list[str], files: dict[str, str]) -> None:
    if name in files:
        load_recipe(yaml.safe_load(files[name]), settings)
    elif name.endswith((".yaml", ".yml")) or name.isupper():
        load_recipe({}, settings)  # the reader's own file: the settings alone are checked
    else:
        assert name in shipped_recipes(), f"there is no recipe {name}"
        load_recipe(name, settings)


def check_install(words: list[str]) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for word in words:
        match = re.search(r"(?:sage-grpo|\.)\[([\w,-]+)\]", word)
        for extra in match[1].split(",") if match else []:
            assert extra in extras, f"there is no extra {extra}"


def check_target(name: str) -> None:
    assert re.search(rf"^{re.escape(name)}:", (ROOT / "Makefile").read_text(), re.M), f"make has no target {name}"
