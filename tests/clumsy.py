"""Clumsy invocations of every command: each must end with 2 and a sentence, without a stack trace, and soon.

`make clumsy`; tests/cli/test_clumsy.py runs the same table.
"""

import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from clumsy_table import TABLE, Clumsy

LIMIT = 60.0  # seconds of one invocation, on a busy machine; most take less than one
PROGRAM = ["-m", "sage_grpo"]
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}


def prepare(folder):
    """The files that the table's lines name."""
    from PIL import Image

    texts = {
        "afile": "not a folder\n",
        "deep.yaml": "[" * 5000,
        "cyc.yaml": "policy: &a\n  inner: *a\n",
        "bomb.yaml": "a: &a [1,1,1,1,1,1,1,1,1]\n"
        + "".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)),
        "loop.yaml": "extends: folder/loop.yaml\n",
        "folder/loop.yaml": "extends: ../folder/../loop.yaml\n",
        "missing-base.yaml": "extends: nosuch\n",
        "extends-list.yaml": "extends: [lab]\n",
        "list.yaml": "- 1\n- 2\n",
        "empty.txt": "",
        "p.txt": "a cat\n",
        "img.jsonl": json.dumps({"prompt": "a", "image": "nosuch.png"}) + "\n",
        "longid.jsonl": json.dumps({"prompt": "a red circle moving left", "id": "x" * 400}) + "\n",
        "fleet-empty.yaml": "scorers: []\n",
        "fleet-unknown.yaml": "scorers: [{type: motoin}]\n",
        "fleet-port.yaml": "scorers: [{type: motion}]\nport: 99999\n",
        "words/config.yaml": "run: {iterations: abc}\n",
        "words/metrics.jsonl": '{"step": 1, "time": 1.0, "reward/mean": 0.5}\n',
        "processes/config.yaml": "parallel: {processes: many}\n",
        "processes/metrics.jsonl": '{"step": 1, "time": 1.0}\n',
        "infinite/config.yaml": "run: {iterations: 3}\n",
        "infinite/metrics.jsonl": '{"step": 1e999, "time": 1.0}\n{"step": 2, "time": 1e999, "reward/mean": "high"}\n'
        '{"step": 3, "time": 3.0, "reward/mean": 1e999, "kl_weight": NaN}\n',
        "deeprun/config.yaml": "[" * 5000,
        "damaged/plan.json": '{"version": "x"',
        "vids/a.mp4": "no video",
    }
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for name in ("binary.yaml", "binary.csv", "broken.pth"):
        (folder / name).write_bytes(bytes(range(256)))
    (folder / "somedir").mkdir()
    Image.new("RGB", (8, 8)).save(folder / "p.png")


def warm_up():
    """The first start waits for the fork server's imports, which is nobody's hang."""
    fault(Clumsy("--help", ""), limit=600)


def may_stay(clumsy):
    """Whether an invocation needs no process of its own: it starts no run and handles no signal."""
    command, *rest = shlex.split(clumsy.line)
    return command not in ("train", "tune", "serve", "rehearse", "first-run", "doctor") or "--check" in rest


def fault_here(clumsy):
    """As `fault`, but in this process, which is five times as fast."""
    from click.testing import CliRunner
    from typer.main import get_command

    from sage_grpo.cli import app

    before = os.getcwd()
    with tempfile.TemporaryDirectory(prefix="clumsy-") as place:
        prepare(Path(place))
        os.chdir(place)
        try:
            result = CliRunner(env=ENVIRONMENT).invoke(
                get_command(app), shlex.split(clumsy.line), prog_name="sage-grpo"
            )
        finally:
            os.chdir(before)
    if result.exception and not isinstance(result.exception, SystemExit):
        return "a stack trace", "".join(traceback.format_exception(*result.exc_info))
    return judged(clumsy, result.exit_code, result.output), result.output


def fault(clumsy, limit=LIMIT):
    """What is wrong with the end of an invocation in a folder of its own; None if nothing is, and what it printed."""
    with tempfile.TemporaryDirectory(prefix="clumsy-") as place:
        prepare(Path(place))
        words = [sys.executable, *PROGRAM, *shlex.split(clumsy.line)]
        process = subprocess.Popen(
            words, cwd=place, env=os.environ | ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True,
        )  # fmt: skip
        try:
            said, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.communicate()
            return f"not ended within {limit:.0f} s", ""
    return judged(clumsy, process.returncode, said), said


def judged(clumsy, code, said):
    """What is wrong with an exit code and an output; None if nothing is."""
    if "Traceback" in said:
        return "a stack trace"
    if code != clumsy.code:
        return f"ended with {code}, not {clumsy.code}"
    if clumsy.answer not in " ".join(said.replace("│", " ").split()):
        return f"the answer does not say {clumsy.answer!r}"
    return None


def main():
    from forks import popen
    from forks.session import Session

    os.environ |= ENVIRONMENT
    session = Session()
    popen.install()
    warm_up()
    chosen = [clumsy for clumsy in TABLE if all(word in clumsy.line for word in sys.argv[1:])]
    faults, times = 0, []

    def timed(clumsy):
        began = time.monotonic()
        return clumsy, fault(clumsy), time.monotonic() - began

    try:
        with ThreadPoolExecutor(2) as pool:
            for clumsy, (wrong, said), seconds in pool.map(timed, chosen):
                times.append((seconds, clumsy.line))
                if wrong:
                    faults += 1
                    print(f"✗ sage-grpo {clumsy.line}: {wrong}\n{said[-1500:]}", flush=True)
    finally:
        popen.uninstall()
        session.end()
    for seconds, line in sorted(times, reverse=True)[:10]:
        print(f"  {seconds:5.1f} s  {line}")
    print(f"{len(chosen)} invocations, {faults} faults")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
