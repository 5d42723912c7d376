"""A rehearsal asks the model hub for nothing, also where the recipe's own weights would come from there."""

import json
import os
import subprocess
import sys
from socketserver import StreamRequestHandler, ThreadingTCPServer
from threading import Thread

import pytest

pytest.importorskip("transformers")

pytestmark = [pytest.mark.slow, pytest.mark.real_start]

ASK = "from huggingface_hub import hf_hub_download; hf_hub_download('nobody/nothing', 'config.json')"


class Hub(ThreadingTCPServer):
    """Notes who connects; whatever is asked for is not there."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Answer)
        self.asked = []
        self.address = "http://{}:{}".format(*self.server_address)


class Answer(StreamRequestHandler):
    def handle(self):
        self.server.asked.append(self.client_address)  # before a word is said: to connect is too much already
        while self.rfile.readline().strip():
            pass
        self.wfile.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")


@pytest.fixture
def hub():
    with Hub() as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def run(hub, home, *words):
    """Where the hub is allowed and nothing was downloaded before."""
    settings = {name: value for name, value in os.environ.items() if not name.endswith("_OFFLINE")}
    settings |= {"HF_ENDPOINT": hub.address, "HF_HOME": str(home), "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    return subprocess.run([sys.executable, *words], env=settings, capture_output=True, text=True, check=False)


def test_a_rehearsal_asks_the_hub_for_nothing(hub, tmp_path):
    """One scorer is trained on and one watches; the weights of both are on the hub."""
    recipe = ["lab", "rewards=[{type: clip}]", "monitors=[{type: pickscore}]"]
    done = run(hub, tmp_path, "-m", "sage_grpo", "rehearse", *recipe, "--processes", "1", "--json")
    assert done.returncode == 0, done.stderr
    assert not hub.asked
    told = "\n".join(json.loads(done.stdout.splitlines()[-1])["stand_ins"])
    assert "reward clip: brightness" in told  # else there was nothing to ask for
    assert "monitor pickscore: left out" in told


def test_who_asks_the_hub_is_noticed(hub, tmp_path):
    done = run(hub, tmp_path, "-c", ASK)
    assert done.returncode != 0
    assert hub.asked, done.stderr
