"""A client of a study's server, which it starts, as a rater's page talks to it."""

import http.client
import json
import threading

from sage_grpo.evaluation.study.server import Server
from sage_grpo.evaluation.study.store import Store

SAME = {"visual": "same", "motion": "same", "semantic": "same"}
LEFT = dict.fromkeys(SAME, "left")


class Client:
    def __init__(self, folder, plan, plan_hash, raters=None, host="127.0.0.1", public=None):
        self.store = Store(folder, plan, plan_hash, raters)
        self.server = Server(host, 0, folder, self.store, public)
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def ask(self, method, path, body=None, token=None, **headers):
        line = http.client.HTTPConnection("127.0.0.1", self.server.server_address[1], timeout=10)
        try:
            sent = {"Authorization": f"Bearer {token}"} if token else {}
            if body is not None:
                sent["Content-Type"] = "application/json"
            data = json.dumps(body) if isinstance(body, dict) else body
            line.request(
                method, self.server.base + path, data, sent | {k.replace("_", "-"): v for k, v in headers.items()}
            )
            reply = line.getresponse()
            return reply.status, dict(reply.getheaders()), reply.read()
        finally:
            line.close()

    def join(self):
        return json.loads(self.ask("POST", "/api/raters", {"consent": True})[2])["token"]

    def fetch(self, token, position):
        return [self.ask("GET", f"/api/videos/{position}/{side}", token=token)[0] for side in ("left", "right")]

    def put(self, token, position, choices, revision=1, watched=True, milliseconds=1500, fetch=True, **headers):
        if fetch:
            self.fetch(token, position)
        body = {"choices": choices, "revision": revision, "milliseconds": milliseconds, "watched": watched}
        return self.ask("PUT", f"/api/answers/{position}", body, token, **headers)[0]

    def close(self):
        self.server.shutdown()
        self.server.server_close()
        self.store.close()
