"""Sentences of pages, help texts and messages, and what docs/style.yaml says of them."""

import ast
import json
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml
from markdown_it import MarkdownIt
from markdown_it.token import Token

from documentation.blocks import ROOT
from documentation.messages import GAP, template

STYLE = ROOT / "docs" / "style.yaml"
CODE = re.compile(r"`[^`]*`")
END = re.compile(r"(?<=[.!?])[)*\"']*\s+(?=[^a-z\s])")
FORMULA = re.compile(r"\$[^$]+\$|\\\(.+?\\\)")
SHOWN = {"help", "description", "short_help", "epilog"}  # arguments that people read
SPEAKS = re.compile(r"\w*(Error|Exception|Warning)|print|warn|Check|warning|fail|refuse\w*|say|tell")


@dataclass(frozen=True)
class Sentence:
    path: Path
    line: int
    text: str


def sentences(path: Path, line: int, text: str) -> Iterator[Sentence]:
    for part in END.split(text):
        yield Sentence(path, line, part.strip())


def page(path: Path) -> Iterator[Sentence]:
    """All that is read on a page or in a notebook: paragraphs, headings, lists, cells and alt texts, without code."""
    source = path.read_text()
    if path.suffix == ".ipynb":
        cells = [cell for cell in json.loads(source)["cells"] if cell["cell_type"] == "markdown"]
        source = "\n\n".join("".join(cell["source"]) for cell in cells)
    source = re.sub(r"\A---\n.*?\n---\n", lambda found: "\n" * found[0].count("\n"), source, flags=re.S)
    line = 0
    for token in MarkdownIt().enable("table").parse(source):
        line = token.map[0] + 1 if token.map else line
        if token.type == "inline":
            yield from sentences(path, line, _plain(token))
            for image in (child for child in token.children or () if child.type == "image"):
                yield from sentences(path, line, image.content)


def _plain(token: Token) -> str:
    """A word for each piece of code or formula."""
    said = {"text": lambda part: part.content, "code_inline": lambda part: GAP, "softbreak": lambda part: " "}
    text = "".join(said[part.type](part) for part in token.children or () if part.type in said)
    return FORMULA.sub(GAP, text)


def module(path: Path) -> Iterator[Sentence]:
    """The help texts and messages of a module."""
    tree = ast.parse(path.read_text())
    commands = path.parent.name == "cli"  # the docstring of a command is its help
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            for text in _said(node):
                for line in (template(text) or "").splitlines():
                    yield from sentences(path, text.lineno, CODE.sub(GAP, line))
        elif commands and isinstance(node, ast.FunctionDef) and (help_text := ast.get_docstring(node)):
            for paragraph in help_text.split("\n\n"):
                yield from sentences(path, node.lineno, CODE.sub(GAP, paragraph))


def comments(path: Path) -> Iterator[Sentence]:
    """The docstrings and comments of a module."""
    for line, text in _docstrings(path):
        for paragraph in _paragraphs(text):
            yield from sentences(path, line, paragraph)
    with tokenize.open(path) as file:
        for line, text in _comments(tokenize.generate_tokens(file.readline)):
            yield from sentences(path, line, CODE.sub(GAP, text))


def docstrings(path: Path) -> list[str]:
    """Of modules, classes, functions and attributes."""
    return [text for _, text in _docstrings(path)]


def _docstrings(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(path.read_text())):
        for child in getattr(node, "body", []) if not isinstance(node, ast.Lambda | ast.IfExp) else []:
            value = child.value if isinstance(child, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield child.lineno, value.value


def _paragraphs(docstring: str) -> Iterator[str]:
    """Without examples, tables and formulas."""
    text = re.sub(r"\$\$.*?\$\$", GAP, docstring, flags=re.S)
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\w+:) )", text):
        if not re.match(r"\s*(Examples?:\s*>>>|>>>|\||```)", paragraph):
            yield " ".join(FORMULA.sub(GAP, CODE.sub(GAP, paragraph)).split())


def _comments(tokens: Iterator[tokenize.TokenInfo]) -> Iterator[tuple[int, str]]:
    """Line and text of each comment; whole lines below one another are one."""
    first, last, text = 0, 0, ""
    for token in tokens:
        if token.type != tokenize.COMMENT or re.match(r"#\s*(type:|noqa|ruff:|pragma|fmt:)", token.string):
            continue
        line, said, whole = token.start[0], token.string.lstrip("#! "), token.line.lstrip().startswith("#")
        if text and line == last + 1 and whole:
            text, last = f"{text} {said}", line
            continue
        if text:
            yield first, text
        first, last, text = line, line if whole else 0, said
    if text:
        yield first, text


def template_page(path: Path) -> Iterator[Sentence]:
    """The text of an HTML page that the software writes, without what is filled in."""
    source = path.read_text()
    for hidden in (r"<(script|style)\b.*?</\1>", r"<!--.*?-->", r"\{#.*?#\}"):
        source = re.sub(hidden, lambda found: "\n" * found[0].count("\n"), source, flags=re.S)
    source = re.sub(r"\{\{.*?\}\}|<(code|kbd)>.*?</\1>", GAP, re.sub(r"\{%.*?%\}", "", source))
    for number, line in enumerate(source.splitlines(), 1):
        for block in re.split(
            r"</?(?:p|li|td|th|h\d|div|summary|details|section|button|label|figcaption)\b[^>]*>", line
        ):
            yield from sentences(path, number, re.sub(r"<[^>]*>", "", block).strip())


def _said(call: ast.Call) -> Iterator[ast.expr]:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if SPEAKS.fullmatch(name):
        yield from call.args
    yield from (keyword.value for keyword in call.keywords if keyword.arg in SHOWN)


@cache
def _style() -> tuple[int, list[tuple[re.Pattern[str], str]]]:
    style = yaml.safe_load(STYLE.read_text())
    rules = (style["terms"] | style["idiom"]).items()
    return style["words_per_sentence"], [(re.compile(rf"\b({bad})\b", re.I), good) for bad, good in rules]


def problems(found: Iterator[Sentence]) -> Iterator[str]:
    """One line for each, with its place."""
    longest, rules = _style()
    for sentence in found:
        place = f"{sentence.path.relative_to(ROOT)}:{sentence.line}"
        words = [word for word in sentence.text.split() if re.search(r"[\w…]", word)]
        if len(words) > longest:
            yield f"{place}: {len(words)} words, {longest} at most: {sentence.text}"
        for bad, good in rules:
            for word in bad.finditer(sentence.text):
                around = sentence.text[max(0, word.start() - 40) : word.end() + 40]
                yield f"{place}: {word[0]!r}; write: {good}: {around}"
