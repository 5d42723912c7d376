"""Removal of secrets and users' names from commands, settings and texts of a run before they are shown. Nothing here
needs torch."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from sage_grpo.config.yaml_text import YamlError, read_yaml

HIDDEN = "***"
# a word of a key speaks of a secret; the name of an environment variable and a tokenizer are none
SECRET = re.compile(
    r"token|secret|passw|passphrase|pwd|credential|authorization|bearer|cookie|signature|api_?-?key|"
    r"(?:^|[_.-])(?:keys?|auth|pass|dsn)(?:$|[_.-])|(?-i:[a-z]Keys?(?:$|[A-Z_.-]))",
    re.I,
)
HARMLESS = re.compile(r"tokenizer|variable", re.I)
COUNT = re.compile(r"token", re.I)  # a number after it is how many, such as max_tokens
VALUE = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"(?:hf_|sk-|[sr]k_live_|gh[pousr]_|github_pat_|glpat-|wandb_v1_|xox[abeprs]-|nvapi-|gsk_|r8_|npm_|ya29\.|"
    r"AIza|dckr_pat_|dop_v1_)[\w.-]{8,}"
    r"|(?:AKIA|ASIA)[A-Z0-9]{12,}|eyJ[\w-]{8,}\.[\w.-]+"
    r"|(?i:bearer|basic)\s+[\w+/=.~-]{6,})"
    r"|//[^/\s@]+@|-----BEGIN[^-]*PRIVATE KEY-----[\s\S]*?(?:-----END[^-]*-----|$)"
)
HOME = re.compile(r"(?<![\w.])(/home|/Users|[A-Za-z]:\\Users)[/\\][^/\\\s=]+|(?<![\w.])/root(?=/|$)")
# `key: value`, `key=value` or `"key": "value"` somewhere in a sentence
PAIR = re.compile(
    r"""(?P<key>(?P<quote>["']?)[\w.-]+(?P=quote)\s*[:=]\s*)(?P<value>"[^"]*"|'[^']*'|[^\s,;&{}\[\]"']+)"""
)
LINE = re.compile(r"^(?P<key>\s*(?:- )?[\w.-]+:\s+)(?P<value>[^\s\[{].*)$", re.M)  # of YAML: all of its value
OPTION = re.compile(r"-{0,2}[\w.-]+")


def clean_command(arguments: Sequence[str]) -> list[str]:
    """Return a command line that is safe to publish.

    Each secret is replaced by `***`, each home folder by `~`, and the path of the program by its name.
    """
    out: list[str] = []
    hide_next = False
    for argument in arguments:
        option, equals, value = argument.partition("=")
        named = bool(OPTION.fullmatch(option))
        if hide_next and not argument.startswith("-"):
            out.append(HIDDEN)
        elif equals and named and _is_secret(option):
            out.append(f"{option}={HIDDEN}")
        elif equals and named:
            out.append(f"{option}={_clean_yaml(value, flow=True)}")
        else:
            out.append(clean_text(argument))
        hide_next = not equals and argument.startswith("-") and _is_secret(argument)
    return [Path(out[0]).name, *out[1:]] if out else out


def clean_settings(value: Any, key: str = "") -> Any:
    """Return settings that are safe to publish.

    A value is replaced by `***` if its key names a secret, such as `api_key`, or if the value looks like a secret.

    Args:
        value: A setting, or nested mappings and lists of settings.
        key: Key of `value` in the settings around it; empty for none.
    """
    if _is_secret(key) and value is not None and not isinstance(value, bool):
        is_count = COUNT.search(key) and isinstance(value, int | float)
        return value if is_count else HIDDEN
    if isinstance(value, Mapping):
        named = any(isinstance(part, str) and _is_secret(part) for part in value.values())  # {name: token, value: …}
        return {
            name: HIDDEN if named and name == "value" else clean_settings(part, str(name))
            for name, part in value.items()
        }
    if isinstance(value, list | tuple):
        return [clean_settings(part) for part in value]
    return clean_text(value) if isinstance(value, str) else value


def clean_recipe(text: str) -> str:
    """Return the text of a recipe with each secret replaced by `***`, and each home folder by `~`."""
    return _clean_yaml(text, flow=False)


def clean_text(text: str) -> str:
    """Return a text with each secret replaced by `***`, and each home folder by `~`."""
    home = str(Path.home())
    text = PAIR.sub(_hide, LINE.sub(_hide, VALUE.sub(HIDDEN, text)))
    text = text.replace(home, "~") if len(home) > 1 else text  # "/" as home is no one's name
    return HOME.sub("~", text)


def _is_secret(key: str) -> bool:
    return bool(SECRET.search(key)) and not HARMLESS.search(key)


def _hide(found: re.Match[str]) -> str:
    key, value = found["key"], found["value"].strip("\"'")
    shown = value in ("null", "None", "true", "false") or (COUNT.search(key) and value.isdigit())
    if _is_secret(key.strip(" \t\n-:=\"'")):
        return found[0] if shown else f"{key}{HIDDEN}"
    return key + PAIR.sub(_hide, found["value"])  # an address may hold pairs of its own


def _clean_yaml(text: str, *, flow: bool) -> str:
    """Return YAML with secrets hidden. Its layout is kept where nothing in it is secret."""
    try:
        values = read_yaml(text)
    except YamlError:
        return clean_text(text)
    cleaned = clean_settings(values)
    if not isinstance(values, Mapping | list) or cleaned == values:
        return clean_text(text)
    shown = yaml.safe_dump(
        cleaned, sort_keys=False, allow_unicode=True, default_flow_style=flow or None, width=10**6 if flow else 80
    )
    return shown.strip() if flow else shown
