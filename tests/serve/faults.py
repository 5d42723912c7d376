"""A scorer that fails on demand, and a relay that spoils what a fleet answers on its way to the trainer.

A prompt's column `fault` names what the scorer does; `once` in the folder of notes keeps a fault from coming back, as
a process that was killed does not remember why.
"""

import math
import os
import signal
import socket
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import torch
import urllib3

from sage_grpo.core.reward import Reward
from sage_grpo.core.scores import Scores
from sage_grpo.rewards.remote.wire import Limits, _unpack, pack_answer

NAMES = ("light", "length")
NOT_FINITE = {"nan": math.nan, "inf": math.inf, "minus inf": -math.inf}
IN_SCORER = ("kill", *NOT_FINITE, "too few", "too many", "raise", "constant")
ON_THE_WAY = ("order", "missing", "foreign", "5xx", "disconnect", "slow", "garbage", "pickle", "huge")


def truth(videos, prompts):
    light = videos.double().flatten(1).mean(1)
    return torch.stack([light, torch.tensor([float(len(p.text)) for p in prompts], dtype=torch.float64)], 1)


class Faulty(Reward):
    """`light` and `length`, or what the prompt's column `fault` says."""

    names = NAMES

    def __init__(self, notes):
        self.notes = Path(notes)
        (self.notes / f"pid-{os.getpid()}").write_text(began(os.getpid()))

    def score(self, videos, prompts):
        values = truth(videos, prompts)
        for i, prompt in enumerate(prompts):
            fault = prompt.columns.get("fault")
            if fault == "kill" and self.first(prompt.columns["once"]):
                os.kill(os.getpid(), signal.SIGKILL)
            if fault in NOT_FINITE:
                values[i, i % 2] = NOT_FINITE[fault]
            if fault == "constant":
                values[i] = 7.0
            if fault == "raise":
                raise RuntimeError("planted")
            if fault == "too few":
                return Scores(values[:-1], torch.ones_like(values[:-1], dtype=torch.bool))
            if fault == "too many":
                return Scores(torch.cat([values, values]), torch.ones(2 * len(values), 2, dtype=torch.bool))
        return Scores(values, torch.ones_like(values, dtype=torch.bool))

    def first(self, once):
        try:
            os.close(os.open(self.notes / f"once-{once}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True


def began(pid):
    """When a process did, in ticks since the machine started; nothing if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def living(notes):
    """Replicas that were made and still live. The number of one that died may be another process by now."""
    found = {int(note.name.removeprefix("pid-")): note.read_text() for note in Path(notes).glob("pid-*")}
    return [pid for pid, start in found.items() if start and began(pid) == start]


def kill_all(notes):
    """Every replica that still lives."""
    killed = living(notes)
    for pid in killed:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        (Path(notes) / f"pid-{pid}").unlink(missing_ok=True)
    return len(killed)


class Relay:
    """Stands between a trainer and its fleet and spoils the answers that it is told to, one after the other."""

    def __init__(self, target, slow=2.0):  # noqa: C901 - the handler inside counts
        relay, pool = self, urllib3.PoolManager(retries=False, maxsize=32)
        self.faults, self.done, self.lock = [], [], threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                self.reply(self.passed_on("GET"))

            def passed_on(self, method, body=None):
                """The fleet's answer, or what a proxy says of a fleet that is away."""
                try:
                    return pool.request(method, target + self.path, body=body, headers=self.passed())
                except urllib3.exceptions.HTTPError:
                    return SimpleNamespace(status=502, data=b"")

            def passed(self):
                return {k: v for k, v in self.headers.items() if k.lower() in ("authorization", "content-type")}

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                with relay.lock:
                    fault = relay.choose(body)
                    relay.done += [fault] if fault else []
                if fault == "5xx":
                    self.send(500, b"planted")
                    return
                if fault == "slow":
                    time.sleep(slow)
                answer = self.passed_on("POST", body)
                if answer.status != 200 or not fault or fault == "slow":
                    self.reply(answer)
                elif fault == "disconnect":
                    self.connection.shutdown(socket.SHUT_RDWR)
                    self.close_connection = True
                elif fault == "garbage":
                    self.send(200, os.urandom(len(answer.data)))
                elif fault == "pickle":
                    self.send(200, b"\x80\x04cos\nsystem\n(S'touch pwned'\ntR.")
                elif fault == "huge":
                    self.send(200, bytes(65_000_000))
                else:
                    self.send(200, spoiled(answer.data, fault))

            def reply(self, answer):
                self.send(answer.status, answer.data)

            def send(self, status, data):
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *details):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.server.handle_error = lambda *details: None  # the trainer may hang up
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def choose(self, body):
        """The fault that this request meets."""
        return self.faults.pop(0) if self.faults else ""

    def close(self):
        self.server.shutdown()
        self.server.server_close()


def spoiled(data, fault):
    """Rows turned round with their ids, one too few, or one of somebody else."""
    tensors, words = _unpack(data, Limits())
    values, valid, ids = tensors["values"], tensors["valid"], words["ids"]
    if fault == "order":
        values, valid, ids = values.flip(0), valid.flip(0), ids[::-1]
    if fault == "missing":
        values, valid, ids = values[:-1], valid[:-1], ids[:-1]
    if fault == "foreign":
        ids = [*ids[:-1], "somebody"]
    return pack_answer(Scores(values, valid), words["names"], ids)
