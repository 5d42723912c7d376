"""What travels with results names no person and no secret. Without torch, for whoever shows a run."""

import re
from pathlib import Path

SECRET_OPTION = re.compile(
    r"^-{0,2}[\w.-]*(token|secret|password|passwd|apikey|credential|(?:^|[_.-])key)[\w.-]*$", re.I
)
SECRET_VALUE = re.compile(r"\b(hf_|sk-|ghp_|github_pat_|wandb_v1_)[\w-]{8,}|//[^/\s@]+@")
HOME = re.compile(r"(?<![\w.])(/home|/Users|[A-Za-z]:\\Users)[/\\][^/\\\s=]+|(?<![\w.])/root(?=/|$)")
HIDDEN = "***"
# a line of YAML whose key speaks of a secret; the name of an environment variable and a tokenizer are none
SECRET_LINE = re.compile(
    r"^(\s*(?:- )?(?!\S*(?:tokenizer|variable))"
    r"[\w.-]*(?:token|secret|password|passwd|apikey|credential|_key)[\w.-]*:\s+)"
    r"(?!null$|\d+$)\S.*$",
    re.I | re.M,
)


def clean_command(arguments: list[str]) -> list[str]:
    """A command line fit to be shown: secrets hidden, home folders as ~, the program by its name only."""
    out: list[str] = []
    hide_next = False
    for argument in arguments:
        option, equals, _ = argument.partition("=")
        if hide_next and not argument.startswith("-"):
            out.append(HIDDEN)
        elif equals and SECRET_OPTION.match(option):
            out.append(f"{option}={HIDDEN}")
        else:
            cleaned = SECRET_VALUE.sub(HIDDEN, argument)
            home = str(Path.home())
            cleaned = cleaned.replace(home, "~") if len(home) > 1 else cleaned  # "/" as home is no one's name
            out.append(HOME.sub("~", cleaned))
        hide_next = not equals and argument.startswith("-") and bool(SECRET_OPTION.match(argument))
    return [Path(out[0]).name, *out[1:]] if out else out


def clean_text(text: str) -> str:
    """A recipe or a sentence fit to be shown: secrets hidden, home folders as ~."""
    return HOME.sub("~", SECRET_VALUE.sub(HIDDEN, SECRET_LINE.sub(rf"\1{HIDDEN}", text)))
