"""A user's mistake becomes one sentence, without a stack trace."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.text import Text

from sage_grpo.errors import UserError

# A path that is a file where a folder is needed, or the reverse; that may not be used; that is too long
REFUSED = frozenset(
    (errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP)
)


@contextmanager
def user_errors(*more: type[Exception]) -> Iterator[None]:
    """Print errors that have an explanation for the user, and exit with 2. All others keep their trace."""
    explained: tuple[type[Exception], ...] = (UserError, *more)
    try:
        yield
    except explained as error:
        _tell(str(error))
    except OSError as error:
        if error.errno == errno.ENOSPC:
            where = f" where {error.filename} is written" if error.filename else ""
            _tell(f"the disk is full{where}; make room, then give the same command again")
        if error.errno not in REFUSED or error.filename is None:
            raise
        _tell(f"{error.filename} cannot be used: {error.strerror}; name another place")


def _tell(sentence: str) -> None:
    Console(stderr=True).print("[bold red]error:[/]", Text(sentence), highlight=False)
    raise typer.Exit(2) from None
