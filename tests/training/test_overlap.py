"""An ordinary run with a slow scorer behind HTTP: videos are scored while the next ones are made."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch
from rich.console import Console

from gaussian_model import GaussianModel
from sage_grpo.core.scores import Scores
from sage_grpo.rewards.remote.wire import pack_answer, unpack_request
from sage_grpo.training.trackers import read_metrics
from sage_grpo.training.trainer import Trainer

pytestmark = pytest.mark.slow

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
            values = videos.frames.double().flatten(1).mean(1, keepdim=True)
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


def timed(reward, waits):
    """Seconds that whoever asks for scores stands still, in order."""
    submit = reward.submit

    def submit_timed(videos, prompts):
        ask = submit(videos, prompts)

        def answer():
            asked = time.monotonic()
            scores = ask()
            waits.append(time.monotonic() - asked)
            return scores

        return answer

    reward.submit = submit_timed


def test_most_of_the_scoring_is_hidden_behind_the_rollout(tmp_path, slow_scorer):
    pytest.importorskip("urllib3")
    address, given = slow_scorer
    model, waits = SlowModel(), []
    settings = {
        "sampling": {"steps": 4},
        "policy": {"prompts_per_iteration": 3, "num_generations": 4, "batch_size": 2},
        "rewards": [{"type": "http", "options": {"url": address}}],
        "run": {"out": str(tmp_path / "run"), "iterations": 2, "sample_every": 0},  # all else as it ships
    }
    trainer = Trainer(model, None, settings, ["a", "b", "c"], console=Console(quiet=True))
    timed(trainer.reward.rewards[0], waits)
    trainer.train()
    assert len(given) == len(model.made) == 2 * BATCHES
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    for row, first in zip(rows, (0, BATCHES), strict=True):
        made, asked = model.made[first : first + BATCHES], given[first : first + BATCHES]
        assert all(begun < following for begun, following in zip(asked, made[1:], strict=False))  # while it is made
        waited = sum(waits[first : first + BATCHES])
        assert waited < 0.4 * BATCHES * TAKES  # at least 60 % are hidden
        assert row["seconds/score"] == pytest.approx(waited, abs=0.1)
    assert rows[1]["seconds/score"] > 0  # before the first score come checks, which hide even the last batch
