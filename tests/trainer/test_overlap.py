"""An ordinary run with a slow scorer behind HTTP: videos are scored while the next ones are made."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch
from rich.console import Console

from sage_grpo.core.loop import Callback
from sage_grpo.core.protocols import Scores
from sage_grpo.models.gaussian import GaussianModel
from sage_grpo.rewards.wire import pack_answer, unpack_request
from sage_grpo.tracking.metrics import read_metrics
from sage_grpo.trainer import Trainer

BATCHES, TAKES = 6, 0.5  # of an iteration; seconds to make a batch, and to score one


@pytest.fixture
def slow_scorer():
    """Its address, and when it was given each batch."""
    given = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.answer(json.dumps({"names": ["light"]}).encode())

        def do_POST(self):
            given.append(time.monotonic())
            videos, _, ids = unpack_request(self.rfile.read(int(self.headers["Content-Length"])))
            time.sleep(TAKES)
            values = videos.double().flatten(1).mean(1, keepdim=True)
            self.answer(pack_answer(Scores(values, torch.ones_like(values, dtype=torch.bool)), ["light"], ids))

        def answer(self, body):
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *details):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}", given
    server.shutdown()


class SlowModel(GaussianModel):
    """Each batch takes a while, and is noted when it is made."""

    def __init__(self):
        super().__init__()
        self.made = []

    def decode(self, x0):
        time.sleep(TAKES)
        self.made.append(time.monotonic())
        return super().decode(x0)


class Scored(Callback):
    def __init__(self):
        self.at = []

    def on_rollout(self, loop, rollouts, scores, valid):
        self.at.append(time.monotonic())


def test_most_of_the_scoring_is_hidden_behind_the_rollout(tmp_path, slow_scorer):
    address, given = slow_scorer
    model, scored = SlowModel(), Scored()
    settings = {
        "sampling": {"steps": 4},
        "policy": {"prompts_per_iteration": 3, "num_generations": 4, "batch_size": 2},
        "rewards": [{"type": "http", "options": {"url": address}}],
        "run": {"out": str(tmp_path / "run"), "iterations": 2, "sample_every": 0},  # all else as it ships
    }
    Trainer(model, None, settings, ["a", "b", "c"], callbacks=[scored], console=Console(quiet=True)).train()
    assert len(given) == len(model.made) == 2 * BATCHES
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    for row, first in zip(rows, (0, BATCHES), strict=True):
        made, asked = model.made[first : first + BATCHES], given[first : first + BATCHES]
        assert all(begun < following for begun, following in zip(asked, made[1:], strict=False))  # while it is made
        waited = scored.at[first // BATCHES] - made[-1]
        assert waited < 0.4 * BATCHES * TAKES  # at least 60 % are hidden
        assert row["seconds/score"] == pytest.approx(waited, abs=0.25)
        assert row["seconds/score"] > 0.5 * TAKES  # the last batch is waited for
