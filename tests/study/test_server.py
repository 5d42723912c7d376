"""The server hands out what it must and no more, and has every answer on the disk once."""

import http.client
import json
import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from sage_grpo.config import ConfigError
from sage_grpo.evaluation.study import server as serving
from sage_grpo.evaluation.study import store as storing
from sage_grpo.evaluation.study.present import as_text
from sage_grpo.evaluation.study.results import dump_results, study_results
from sage_grpo.evaluation.study.server import Server
from sage_grpo.evaluation.study.store import Store, rater_id, read_rater
from study.client import LEFT, SAME


def lines(folder, token):
    return [json.loads(line) for line in (folder / "answers" / f"{rater_id(token)}.jsonl").read_text().splitlines()]


def test_an_answer_is_kept_once_and_a_change_is_the_last_word(make, start):
    folder, plan, plan_hash = make()
    client = start(folder, plan, plan_hash)
    token = client.join()
    assert [client.put(token, 0, SAME), client.put(token, 0, SAME)] == [200, 200]
    assert client.put(token, 0, LEFT) == 409  # another window
    assert client.put(token, 0, LEFT, revision=2, milliseconds=9000) == 200
    assert client.put(token, 0, SAME) == 200  # a retry that was overtaken
    rows = lines(folder, token)[1:]
    assert [(row["revision"], row["choices"]) for row in rows] == [(1, SAME), (2, LEFT)]
    rater = read_rater(folder / "answers" / f"{rater_id(token)}.jsonl", plan_hash)
    assert (rater.answers[0].choices, rater.answers[0].first_ms) == (LEFT, 1500)
    mine = json.loads(client.ask("GET", "/api/rater", token=token)[2])
    assert mine["answers"] == {"0": {"choices": LEFT, "revision": 2}}
    text = (folder / "answers" / f"{rater_id(token)}.jsonl").read_text()
    assert token not in text
    assert "127.0.0.1" not in text


def test_many_at_once(make, start):
    folder, plan, plan_hash = make()
    client = start(folder, plan, plan_hash)

    def take_part(_):
        token = client.join()
        return token, [client.put(token, i, LEFT) for i in range(9) for _ in range(2)]

    with ThreadPoolExecutor(8) as pool:
        done = list(pool.map(take_part, range(8)))
    assert all(status == 200 for _, all_ in done for status in all_)
    for token, _ in done:
        assert [row["position"] for row in lines(folder, token)[1:]] == list(range(9))
    assert sorted(rater.number for rater in client.store.raters.values()) == list(range(8))


@pytest.mark.parametrize(
    "path",
    [
        "/plan.json",
        "/../plan.json",
        "/%2e%2e/plan.json",
        "/api/videos/../../plan.json",
        "/videos/",
        "/answers/",
        "/api/videos/0/left/..",
        "/api/videos/99999/left",
        "/api/videos/0/both",
        "/api/videos/-1/left",
        "//etc/passwd",
    ],
)
def test_nothing_else_is_served(make, start, path):
    client = start(*make())
    token = client.join()
    status, _, body = client.ask("GET", path, token=token)
    assert status == 404
    assert b"methodzeta" not in body


def test_every_reply_is_guarded(make, start):
    client = start(*make())
    token = client.join()
    for path in ("/", "/api/study", "/nowhere", "/api/rater", "/api/videos/0/left"):
        _, headers, _ = client.ask("GET", path, token=token)
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert "unsafe" not in headers["Content-Security-Policy"]
        assert (headers["X-Content-Type-Options"], headers["Referrer-Policy"]) == ("nosniff", "no-referrer")
        assert headers["Server"] == "study"


def test_strangers_are_refused(make, start):
    client = start(*make())
    token = client.join()
    assert client.ask("GET", "/api/rater")[0] == 401
    assert client.ask("GET", "/api/videos/0/left")[0] == 401
    assert client.put("someone", 0, SAME) == 401
    assert client.put(token, 0, SAME, Origin="https://elsewhere.example") == 403
    assert client.put(token, 0, SAME, Sec_Fetch_Site="cross-site") == 403
    assert client.ask("GET", "/", Host="rebound.example")[0] == 421
    assert client.put(token, 0, SAME, Origin=client.server.url.rstrip("/")) == 200
    assert client.ask("POST", "/api/raters", {"consent": False})[0] == 422
    assert client.ask("DELETE", "/api/rater", token=token)[0] == 501


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"[]", 400),
        (b"{", 400),
        (b"[" * 9000, 400),
        (b" " * 20_000, 413),
        ({}, 422),
        ({"choices": SAME | {"extra": "left"}, "revision": 1, "milliseconds": 1, "watched": True}, 422),
        ({"choices": {"visual": "left"}, "revision": 1, "milliseconds": 1, "watched": True}, 422),
        ({"choices": SAME | {"visual": "up"}, "revision": 1, "milliseconds": 1, "watched": True}, 422),
        ({"choices": SAME | {"visual": ["left"]}, "revision": 1, "milliseconds": 1, "watched": True}, 422),
        ({"choices": SAME, "revision": True, "milliseconds": 1, "watched": True}, 422),
        ({"choices": SAME, "revision": 1, "milliseconds": -1, "watched": True}, 422),
        ({"choices": SAME, "revision": 1, "milliseconds": 1, "watched": False}, 422),
    ],
)
def test_bad_answers_are_refused_and_leave_no_trace(make, start, body, status):
    folder, *rest = make()
    client = start(folder, *rest)
    token = client.join()
    assert client.ask("PUT", "/api/answers/0", body, token)[0] == status
    assert client.ask("PUT", "/api/answers/0", b"choices=left", token, Content_Type="text/plain")[0] == 415
    assert len(lines(folder, token)) == 1
    assert client.put(token, 0, SAME) == 200


def test_sides_shown_are_sides_told(make, start):
    folder, plan, plan_hash = make()
    client = start(folder, plan, plan_hash)
    token = client.join()
    for i, showing in enumerate(client.store.find(token).showings):
        pair = plan.by_id[showing.comparison]
        right, left = (pair.first, pair.second) if showing.swapped else (pair.second, pair.first)
        for side, clip in (("left", left), ("right", right)):
            status, headers, data = client.ask("GET", f"/api/videos/{i}/{side}", token=token)
            assert (status, headers["Content-Type"]) == (200, "video/mp4")
            assert data == (folder / "videos" / clip.video).read_bytes()


def test_others_come_in_by_a_code_only(make, start):
    folder, plan, plan_hash = make()
    client = start(folder, plan, plan_hash, host="0.0.0.0")
    assert client.server.url.endswith(f"/{plan.access}/")
    assert client.ask("GET", "/")[0] == 200
    client.server.base, right = "", client.server.base
    line = http.client.HTTPConnection("127.0.0.1", client.server.server_address[1])
    client.server.base = right
    for path in ("/", "/api/study", f"/{plan.access[:-1]}x/"):
        line.request("GET", path)
        reply = line.getresponse()
        assert (reply.status, b"whole link" in reply.read()) == (404, True)
        line.close()


def test_behind_a_proxy(make, start):
    folder, plan, plan_hash = make()
    client = start(folder, plan, plan_hash, public="https://study.example.org")
    assert client.server.url == f"https://study.example.org/{plan.access}/"
    for host in ("study.example.org", "localhost:9"):
        status = client.ask("POST", "/api/raters", {"consent": True}, Host=host, Origin="https://study.example.org")[0]
        assert status == 201
    assert client.ask("GET", "/", Host="other.example")[0] == 421
    with pytest.raises(ConfigError, match="is no address"):
        Server("127.0.0.1", 0, folder, client.store, "study.example.org")
    with pytest.raises(ConfigError, match="--port 0 picks a free one"):
        Server("127.0.0.1", client.server.server_address[1], folder, client.store)


def test_results_as_markdown_make_no_markup():
    text = as_text("a|b\n<script>alert(1)</script> ![x](http://tracker) `code`")
    assert text == "a\\|b \\<script\\>alert(1)\\</script\\> ![x]\\(http://tracker) \\`code\\`"
    assert as_text("50.0 [40.0, 60.0]") == "50.0 [40.0, 60.0]"


def test_enough_raters(make, start, monkeypatch):
    folder, plan, plan_hash = make()
    client = start(folder, plan, plan_hash, raters=1)
    token = client.join()
    assert client.ask("POST", "/api/raters", {"consent": True})[0] == 409
    assert json.loads(client.ask("GET", "/api/study")[2])["open"] is False
    assert client.put(token, 0, SAME) == 200  # who is in may finish
    monkeypatch.setattr(storing, "AWAY", -1.0)  # gone for good: the place is free again
    assert client.ask("POST", "/api/raters", {"consent": True})[0] == 201


def test_a_restart_mends_a_torn_line_and_goes_on(make, start):
    folder, plan, plan_hash = make()
    client = start(folder, plan, plan_hash)
    token = client.join()
    client.put(token, 0, SAME)
    with pytest.raises(ConfigError, match="being run already"):
        Store(folder, plan, plan_hash)
    client.close()
    path = folder / "answers" / f"{rater_id(token)}.jsonl"
    with path.open("ab") as file:
        file.write(b'{"position": 1, "choi')  # the power went off
    (folder / "answers" / "0123.jsonl").write_bytes(b'{"rat')
    assert study_results(folder).raters.answered == 1  # is read as it is
    again = start(folder, plan, plan_hash)
    assert again.put(token, 1, LEFT) == 200
    assert [row["choices"] for row in lines(folder, token)[1:]] == [SAME, LEFT]
    path.write_text(path.read_text().replace('"choices"', '"chioces"', 1))
    with pytest.raises(ConfigError, match="line 2 is damaged"):
        study_results(folder)


def test_keys_of_what_is_written(make, start):
    """Others read answers and results: every key, in its order."""
    folder, plan, plan_hash = make()
    client = start(folder, plan, plan_hash)
    token = client.join()
    for i in range(9):
        client.put(token, i, LEFT)
    head, answer, *_ = lines(folder, token)
    assert list(head) == ["rater", "number", "plan", "time", "showings"]
    assert list(head["showings"][0]) == ["comparison", "swapped", "repeat"]
    assert list(answer) == [
        *("position", "comparison", "swapped", "repeat"),
        *("choices", "revision", "milliseconds", "time"),
    ]
    results = json.loads(dump_results(study_results(folder)))
    assert list(results) == [
        *("version", "title", "plan", "rule", "method", "notes"),
        *("raters", "checks", "kept", "all"),
    ]
    assert results["raters"] == {"joined": 1, "answered": 1, "kept": 0, "left_out": 1, "finished": 1}
    assert list(results["checks"][0]) == ["rater", "answered", "finished", "checks", "failed", "left_out"]
    assert results["kept"] is None
    group = results["all"]
    assert list(group) == [
        *("raters", "prompts", "comparisons", "median_seconds"),
        *("left_share", "repeats", "dimensions"),
    ]
    assert (group["left_share"][0], group["repeats"]) == (1.0, {"same": 0, "of": 3})
    dimension = group["dimensions"]["motion"]
    assert list(dimension) == ["name", "pairs", "ties", "alpha", "scores", "separated", "separated_resamples"]
    assert list(dimension["pairs"][0]) == ["first", "second", "wins", "ties", "losses", "rate"]
    assert list(dimension["scores"]["methodzeta"]) == list(dimension["pairs"][0]["rate"]) == ["value", "low", "high"]


def test_a_full_disk_is_told_and_leaves_whole_lines(make, start, monkeypatch):
    folder, *rest = make()
    client = start(folder, *rest)
    token = client.join()

    def full(_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        assert client.put(token, 0, SAME) == 503
    assert client.put(token, 0, LEFT) == 200  # the page tries again
    assert [row.get("choices") for row in lines(folder, token)] == [None, LEFT]


def test_a_plan_that_changed_is_refused(make, start):
    folder, plan, plan_hash = make()
    client = start(folder, plan, plan_hash)
    client.put(client.join(), 0, SAME)
    path = folder / "plan.json"
    path.write_text(path.read_text().replace('"max_failed": 0.34', '"max_failed": 0.9'))
    with pytest.raises(ConfigError, match="must not change once it is rated"):
        study_results(folder)


def test_the_policy_is_of_the_pages_own_script(make, start):
    client = start(*make())
    page = client.server.page.decode()
    assert serving.policy(page) != serving.policy(page.replace('"use strict";', '"use strict"; alert(1);'))
    assert "http://" not in page
    assert "https://" not in page
