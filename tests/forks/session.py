"""The server of one pytest session: started with it, ended with it."""

import os
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from forks import popen, wire
from shared_plans import FOLDER

TESTS = Path(__file__).parents[1]
PATH = "SAGE_GRPO_FORK_PATH"  # folder with `python`, `sage-grpo` and `torchrun` for shell scripts
CLIENT = """#!{python} -IS
import sys
sys.path.insert(0, {folder!r})
from client import main
main({program!r}, {python!r})
"""


def search_path():
    """PATH of a shell whose `python`, `sage-grpo` and `torchrun` are those of this environment, or forks of them."""
    places = [os.environ.get(PATH), str(Path(sys.executable).parent), os.environ["PATH"]]
    return os.pathsep.join(filter(None, places))


class Session:
    def __init__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="forks-")
        place = Path(self.folder.name)
        for program in ("python", "sage-grpo", "torchrun"):
            script = place / program
            script.write_text(CLIENT.format(python=sys.executable, folder=str(TESTS / "forks"), program=program))
            script.chmod(script.stat().st_mode | stat.S_IXUSR)
        (place / "plans").mkdir()
        os.environ |= {wire.SERVER: str(place / "socket"), PATH: str(place), FOLDER: str(place / "plans")}
        paths = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
        command = [sys.executable, "-m", "forks.server", os.environ[wire.SERVER]]
        self.server = popen.REAL(command, env=os.environ | {"PYTHONPATH": paths}, stdin=subprocess.PIPE)
        while not (place / "socket").exists() and self.server.poll() is None:
            time.sleep(0.01)

    def end(self):
        self.server.stdin.close()
        self.server.wait()
        self.folder.cleanup()
