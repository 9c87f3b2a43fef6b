"""`pusl serve` as a process, spoken to over real HTTP: answers, limits, faults, shutdown."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from server_process import LABELS, Server, make_text, shared_model, shared_server

from pusl.cli import main

pytestmark = pytest.mark.slow

pytest.importorskip("fastapi", reason="needs the extra `serve`")
KEY = "s3cret-key"


@pytest.fixture(scope="module")
def model() -> Path:
    return shared_model()


@pytest.fixture(scope="module")
def servers(model: Path) -> Iterator[tuple[Server, Server]]:
    """A roomy one with a universe, and a cramped one that wants a key; started together to save time."""
    roomy = shared_server()
    narrow = "--max-batch 1 --max-queue 6 --max-texts 6 --max-wait-ms 0 --timeout 4 --api-key-env TEST_KEY"
    with Server(model, *narrow.split(), environment={"TEST_KEY": KEY}) as cramped:
        status, answer, headers = post(cramped, {"texts": ["x"]})  # alive before it is ready
        assert (status, answer["error"]["code"], headers["retry-after"]) == (503, "loading", "2")
        assert cramped.call("GET", "/healthz")[0] == 200
        yield roomy.wait_ready(), cramped.wait_ready()


@pytest.fixture(scope="module")
def server(servers: tuple[Server, Server]) -> Server:
    return servers[0]


@pytest.fixture(scope="module")
def cramped(servers: tuple[Server, Server]) -> Server:
    return servers[1]


@pytest.fixture(scope="module")
def generator(model: Path) -> Any:
    from pusl.decoding.generator import KeyphraseGenerator

    return KeyphraseGenerator.from_pretrained(model)


def post(server: Server, body: Any, **headers: str) -> tuple[int, Any, dict[str, str]]:
    return server.call("POST", "/v1/keyphrases", body, {"Authorization": f"Bearer {KEY}", **headers})


def same(result: dict[str, Any], prediction: Any) -> bool:
    close = all(abs(a - b) < 1e-3 for a, b in zip(result["scores"], prediction.scores, strict=True))
    return result["keyphrases"] == prediction.keyphrases and result["exhausted"] == prediction.exhausted and close


def test_answers_equal_offline_generation_whatever_the_batch_mates(server: Server, generator: Any) -> None:
    texts = [make_text(seed, 4 + seed % 20) for seed in range(60)]
    expected = {k: generator.generate(texts, k) for k in (3, 5)}
    before = server.metric("pusl_batch_texts_count")

    def ask(index: int) -> tuple[int, Any, dict[str, str]]:
        return server.ask([texts[index]], k=3 if index % 2 else 5)

    with ThreadPoolExecutor(30) as pool:
        answers = list(pool.map(ask, range(60)))
    for index, (status, answer, _) in enumerate(answers):
        assert status == 200
        assert same(answer["results"][0], expected[answer["k"]][index])
    assert server.metric("pusl_batch_texts_count") - before < 40  # batches were shared between requests
    status, answer, _ = server.ask(texts, k=5)
    assert status == 200
    assert all(same(result, wanted) for result, wanted in zip(answer["results"], expected[5], strict=True))


def test_defaults_come_from_the_model(server: Server) -> None:
    status, about, _ = server.call("GET", "/v1/model")
    assert status == 200
    assert about["model"] == "tiny"
    assert about["defaults"]["k"] == 5
    assert about["vocabularies"] == ["open", "prefer", "closed"]
    assert about["defaults"]["strategy"] in about["strategies"]
    status, answer, headers = server.ask([make_text(1)])
    assert status == 200
    assert answer["k"] == 5
    assert "marks" not in answer["results"][0]
    assert headers["x-request-id"]


def test_known_keyphrases_are_not_given_again(server: Server, generator: Any) -> None:
    texts = [make_text(seed, 8) for seed in range(12)]
    known = [one.keyphrases[: seed % 3] for seed, one in enumerate(generator.generate(texts, 3))]
    expected, free = generator.generate(texts, 4, known=known), generator.generate(texts, 4)

    def ask(index: int) -> tuple[int, Any, dict[str, str]]:
        if index % 2:
            return server.ask([texts[index]], k=4)
        return server.ask([texts[index]], k=4, known=[known[index]])

    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(ask, range(12)))
    for index, (status, answer, _) in enumerate(answers):
        assert status == 200, answer
        assert same(answer["results"][0], (free if index % 2 else expected)[index])
    assert [one.keyphrases for one in expected] != [one.keyphrases for one in free]
    status, answer, _ = server.ask(texts, k=4, known=known, explain=True)
    assert status == 200 and all(map(same, answer["results"], expected))
    assert not any(set(mine) & set(result["keyphrases"]) for mine, result in zip(known, answer["results"], strict=True))


def test_every_strategy_offered_works(server: Server) -> None:
    for strategy in server.call("GET", "/v1/model")[1]["strategies"]:
        status, answer, _ = server.ask([make_text(2)], k=3, strategy=strategy)
        assert status == 200, answer
        assert len(answer["results"][0]["keyphrases"]) <= 3


def test_explain_marks_and_closed_vocabulary(server: Server) -> None:
    text = "Waterproof hiking boots and a red tent"
    status, answer, _ = server.ask([text], k=5, vocabulary="closed", explain=True)
    assert status == 200
    result = answer["results"][0]
    assert result["keyphrases"]
    for phrase, mark in zip(result["keyphrases"], result["marks"], strict=True):
        assert mark["in_universe"] is True
        assert mark["present"] is (phrase in text.lower())
        assert [text[start:end].lower() for start, end in mark["offsets"]] == [phrase] * mark["present"]
        assert mark["new"] is (phrase not in LABELS)


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"{", 400, "not JSON"),
        (b"", 422, "body: is missing; expected a JSON object"),
        (b"null", 422, "body: "),
        (b"\xff\xfe{}", 400, "not JSON"),
        (b"[" * 100_000, 400, "not JSON"),
        (b'{"texts": ["a"], "k": ' + b"9" * 5000 + b"}", 400, "not JSON"),
        (b'{"texts": ["a"], "min_score": NaN}', 400, "NaN is not a JSON number"),
        (b'{"texts": ["a"], "min_score": -Infinity}', 400, "-Infinity is not a JSON number"),
        (b'{"texts": ["a"], "min_score": 1e999}', 422, "min_score"),
        (b'{"texts": ["a"], "k": 1, "k": 2}', 400, "a key occurs twice"),
        ('{"texts": ["a"]}'.encode("utf-16"), 400, "not UTF-8"),
        (b'{"texts": ' + b"[" * 600 + b"]" * 600 + b"}", 422, "texts.0"),
        (b'{"texts": ["a"], "x": ' + b'{"a":' * 600 + b"1" + b"}" * 600 + b"}", 422, "x: "),
        (b'{"texts": ["a"], "' + b"y" * 100_000 + b'": 1}', 422, "y..."),
        (b'{"texts": ["a"], "\\ud800": 1}', 422, "valid Unicode"),
        (b'{"texts": ["a"], "\\u001b[31m": 1}', 422, "?[31m: is not a field"),
        (b'{"texts": ["a"], "strategy": "\\ud800"}', 422, "strategy"),
        ({"texts": ["a"], "k": 5.5}, 422, "k"),
        ({"texts": ["a"], "seed": True}, 422, "seed"),
        ({"texts": ["a"], "seed": 2**31}, 422, "seed"),
        ({"texts": ["a"], "num_beams": 65}, 422, "num_beams"),
        ({"texts": ["a"], "num_beams": False}, 422, "num_beams"),
        ({"texts": ["a"], "allow_repeats": 1}, 422, "allow_repeats"),
        ({"texts": ["a"], "explain": "yes"}, 422, "explain"),
        ({"texts": ["a"], "min_score": "-1"}, 422, "min_score"),
        ({"texts": ["a"], "vocabulary": 1}, 422, "vocabulary"),
        ({"texts": ["a"], "strategy": 1}, 422, "strategy"),
        ({"texts": [1]}, 422, "texts.0"),
        ({"texts": {"0": "a"}}, 422, "texts"),
        ({"texts": ["a"], "min_score": False}, 422, "min_score"),
        ({"texts": ["a"], "top_p": True}, 422, "top_p"),
        ({"texts": ["a"], "temperature": True}, 422, "temperature"),
        ({"texts": ["a"], "temperature": 1e-308}, 422, "temperature: must be 0 or at least 0.01"),
        (b'{"texts": ["\\ud800"]}', 422, "texts.0"),
        (b"[]", 422, "body: expected a JSON object"),
        ({"texts": []}, 422, "texts: is empty; expected at least one"),
        ({"texts": "a"}, 422, "texts: expected a list"),
        ({"texts": [None]}, 422, "texts.0: expected a string"),
        ({"k": 3}, 422, "texts: is missing"),
        ({"texts": ["a"], "k": 0}, 422, "k: must be at least 1"),
        ({"texts": ["a"], "k": "5"}, 422, "k: expected an integer"),
        ({"texts": ["a"], "temperature": 11}, 422, "temperature: must be at most 10"),
        ({"texts": ["a"], "min_score": 0.3}, 422, "min_score 0.3: the scores of this model are log-probabilities"),
        ({"texts": ["a"], "k": True}, 422, "k"),
        ({"texts": ["a"], "k": 51}, 422, "limit of 50"),
        ({"texts": ["a"], "strategy": "nope"}, 422, "strategy"),
        ({"texts": ["a"], "vocabulary": "nope"}, 422, "vocabulary: expected 'open', 'prefer' or 'closed'"),
        ({"texts": ["a"], "top_k": 5}, 422, "top_k: is not a field of this API"),
        ({"texts": ["a"], "known": []}, 422, "known: 0 lists for 1 texts"),
        ({"texts": ["a"], "known": ["boot"]}, 422, "known.0"),
        ({"texts": ["a"], "known": [["b" * 20_001]]}, 413, "known.0"),
        (b'{"texts": ["a"], "known": [["\\ud800"]]}', 422, "known.0"),
        ({"texts": ["a"], "known": [["boot"]], "temperature": 1.0}, 422, "known: cannot be combined"),
        ({"texts": ["a"] * 257}, 413, "at most 256"),
        ({"texts": ["a" * 20_001]}, 413, "at most 20000"),
        ({"texts": ["a" * 19_000] * 250}, 413, "bytes"),
    ],
)  # fmt: skip
def test_bad_bodies_get_a_clear_answer(server: Server, body: Any, status: int, message: str) -> None:
    found, answer, _ = server.call("POST", "/v1/keyphrases", body)
    assert found == status, answer
    assert message in answer["error"]["message"]
    assert answer["error"]["code"]
    assert not any(words in answer["error"]["message"] for words in ("Input should", "Field required", "validation"))
    assert len(answer["error"]["message"]) < 250 and answer["error"]["message"].isprintable()


@pytest.mark.parametrize(
    "body",
    [b'{"texts": [%s 1]}' % (b"1," * 2_000_000), b'{"texts": ["a"], "known": [%s 1]}' % (b"1," * 2_000_000),
     b'{"texts": ["a"], "known": [[%s 1]]}' % (b"1," * 2_000_000),
     b'{"texts": ["a"]%s}' % b"".join(b', "%x": 1' % i for i in range(350_000))],
    ids=["texts", "known", "phrases", "fields"],
)  # fmt: skip
def test_millions_of_mistakes_in_one_body_cost_as_little_as_one(server: Server, body: bytes) -> None:
    """Each used to get a message of its own: seconds in which nobody was answered, and gigabytes."""

    def used() -> tuple[float, int]:
        process = Path(f"/proc/{server.process.pid}")
        fields = (process / "stat").read_text().rpartition(")")[2].split()
        peak = re.search(r"VmHWM:\s+(\d+)", (process / "status").read_text())
        assert peak
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), int(peak[1]) >> 10

    seconds, megabytes = used()
    status, answer, _ = server.call("POST", "/v1/keyphrases", body)
    assert status in (400, 422) and len(answer["error"]["message"]) < 300
    assert used()[0] - seconds < 1.5
    assert used()[1] - megabytes < 300


def test_wrong_paths_methods_and_types(server: Server) -> None:
    assert server.call("GET", "/nope")[0] == 404
    assert server.call("GET", "/v1/keyphrases")[0] == 405
    for method in ("PUT", "PATCH", "DELETE"):
        for body in (None, b"x", {"texts": ["a"]}):
            status, answer, _ = server.call(method, "/v1/keyphrases", body)
            assert (status, answer["error"]["code"]) == (405, "wrong_method")
    assert server.call("POST", "/v1/keyphrases", b"x", {"Content-Type": "text/plain"})[0] == 415
    assert server.call("GET", "/nope")[1]["error"]["code"] == "not_found"
    for path in ("/v1/keyphrases/", "/docs/", "/../pusl.json", "/docs/..%2f..%2fpusl.json", "/%00", "/%ff"):
        assert server.call("GET", path)[0] == 404, path  # and no redirect, which would repeat the Host header
    for path in ("/", "/healthz", "/readyz"):
        status, body, headers = server.call("HEAD", path)
        assert (status, body) == (200, "") and int(headers["content-length"]) > 0
    assert server.call("HEAD", "/v1/keyphrases")[0] == 405


def test_two_host_headers_are_refused(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(b"GET /v1/model HTTP/1.1\r\nHost: evil.example\r\nHost: localhost\r\n\r\n")
        assert b" 400 " in connection.recv(4096)


def test_only_names_of_this_machine_are_answered_without_a_key(server: Server, cramped: Server) -> None:
    body = {"texts": ["a"], "k": 1}
    for host in ("localhost", f"127.0.0.1:{server.port}", "[::1]:80", "192.168.0.7"):
        assert server.call("POST", "/v1/keyphrases", body, {"Host": host})[0] == 200, host
    for host in ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example:80", "localhost@evil.example", ""):
        for path in ("/", "/v1/model", "/metrics", "/nope"):
            status, answer, _ = server.call("GET", path, headers={"Host": host})
            assert (status, answer["error"]["code"]) == (421, "wrong_host"), host
    assert server.call("GET", "/readyz", headers={"Host": "probe.example"})[0] == 200
    assert cramped.call("POST", "/v1/keyphrases", body, {"Host": "evil.example", "X-API-Key": KEY})[0] == 200


def test_a_client_cannot_color_the_log(server: Server) -> None:
    escape = "\x1b[31m\x9b31m\u202e".encode().decode("latin-1")
    headers = {"X-Request-ID": escape, "X-Forwarded-For": escape, "User-Agent": escape}
    server.call("POST", "/v1/keyphrases", {"texts": ["a"], "k": 1}, {**headers, "Authorization": "Bearer hidden-key"})
    server.call("GET", "/%1b%5b31m%c2%9b", headers={"X-Request-ID": "colors"})
    wait_for_line(server, "colors")
    assert server.read_log().isascii() and "\x1b" not in server.read_log()
    metrics = server.call("GET", "/metrics")[1]
    assert "hidden-key" not in server.read_log() + metrics and "\x1b" not in metrics and "31m" not in metrics


def wait_for_line(server: Server, request_id: str) -> None:
    end = time.monotonic() + 10
    while not any(line.get("request_id") == request_id for line in server.log_lines()):
        assert time.monotonic() < end
        time.sleep(0.02)


def test_odd_texts_are_answered(server: Server) -> None:
    texts = ["", "   ", "\u0000", "<bok> <eok> </s>", "日本語 🎒", "é" * 20_000]
    status, answer, _ = server.ask(texts, k=2)
    assert status == 200
    assert len(answer["results"]) == len(texts)
    reasons = [result.get("reason") for result in answer["results"]]
    assert reasons[:2] == ["empty text"] * 2 and reasons[3:] == [None] * 3


def test_a_text_that_was_cut_says_so(server: Server) -> None:
    status, answer, _ = server.ask([make_text(1, 200), make_text(1, 4)], k=2)
    assert status == 200
    assert [result.get("truncated", False) for result in answer["results"]] == [True, False]


def test_a_chunked_body_that_is_too_big_is_cut_off(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        head = "POST /v1/keyphrases HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        connection.sendall((head + "Transfer-Encoding: chunked\r\n\r\n").encode())
        answer = b""
        with contextlib.suppress(ConnectionError):  # the server may hang up once it has seen enough
            for _ in range(6):  # no Content-Length tells the size beforehand
                connection.sendall(b"100000\r\n" + b"x" * 0x100000 + b"\r\n")
            answer = connection.recv(4096)
        assert b" 413 " in answer or answer == b""
    assert server.metric('pusl_http_requests_total{path="/v1/keyphrases",status="413"}') >= 1


def test_pages_are_self_contained(server: Server) -> None:
    for path in ("/", "/docs"):
        status, html, headers = server.call("GET", path)
        assert status == 200
        assert "default-src 'none'" in headers["content-security-policy"]
        loads = re.findall(r"""\bsrc=|@import|\burl\(|<iframe|rel="stylesheet""", html)
        assert not loads, f"{path} loads something"
        outside = [part for part in html.split("http")[1:] if part.startswith(("://", "s://"))]
        assert all(part.startswith("://www.w3.org/2000/svg") for part in outside)


def test_openapi_describes_fields_and_limits(server: Server) -> None:
    status, api, _ = server.call("GET", "/openapi.json")
    assert status == 200
    fields = api["components"]["schemas"]["KeyphraseRequest"]["properties"]
    assert fields["k"]["anyOf"][0]["maximum"] == 50
    assert fields["texts"]["maxItems"] == 256
    answers = api["paths"]["/v1/keyphrases"]["post"]["responses"]
    assert {"200", "401", "413", "422", "429", "503", "504"} <= set(answers)


def test_metrics_count(server: Server) -> None:
    texts, requests = "pusl_texts_total", 'pusl_http_requests_total{path="/v1/keyphrases",status="200"}'
    before = server.metric(texts), server.metric(requests)
    server.ask([make_text(1), make_text(2), make_text(3)], k=2)
    assert (server.metric(texts), server.metric(requests)) == (before[0] + 3, before[1] + 1)
    assert server.metric("pusl_ready") == 1


def test_logs_are_json_and_hold_no_text(server: Server) -> None:
    body = {"texts": ["unmistakable secret phrase"], "k": 2}
    server.call("POST", "/v1/keyphrases", body, {"X-Request-ID": "my-id.1"})
    server.call("POST", "/v1/keyphrases", {"texts": "unmistakable secret phrase"})
    server.call("GET", "/unmistakable?secret=phrase")
    lines = server.log_lines()
    mine = next(line for line in lines if line.get("request_id") == "my-id.1")
    assert (mine["status"], mine["texts"], mine["k"], mine["path"]) == (200, 1, 2, "/v1/keyphrases")
    assert "unmistakable" not in server.read_log()
    assert "secret" not in server.read_log()


def test_a_killed_model_process_is_replaced_and_nothing_is_lost(server: Server, generator: Any) -> None:
    restarts = server.metric("pusl_worker_restarts")
    texts = [make_text(seed) for seed in range(60)]
    expected = generator.generate(texts, 5)
    with ThreadPoolExecutor(6) as pool:
        with server.frozen_worker() as pid:
            waiting = [pool.submit(server.ask, texts[i : i + 10], k=5) for i in range(0, 60, 10)]
            wait_until(server, "pusl_http_open_requests 7.0")
            os.kill(pid, signal.SIGKILL)
        answers = [one.result() for one in waiting]
    assert [status for status, _, _ in answers] == [200] * 6
    results = [result for _, answer, _ in answers for result in answer["results"]]
    assert all(same(result, wanted) for result, wanted in zip(results, expected, strict=True))
    assert server.metric("pusl_worker_restarts") == restarts + 1
    assert server.call("GET", "/readyz")[0] == 200


def test_the_key_is_needed_where_it_matters(cramped: Server) -> None:
    body = {"texts": ["x"], "k": 1}
    assert cramped.call("POST", "/v1/keyphrases", body)[0] == 401
    assert cramped.call("POST", "/v1/keyphrases", body, {"Authorization": "Bearer wrong"})[0] == 401
    assert cramped.call("POST", "/v1/keyphrases", body, {"Authorization": "Bearer s3cret-ke\xff"})[0] == 401
    status, answer, headers = cramped.call("GET", "/metrics")
    assert (status, answer["error"]["code"], headers["www-authenticate"]) == (401, "unauthorized", "Bearer")
    assert cramped.call("POST", "/v1/keyphrases", body, {"X-API-Key": KEY})[0] == 200
    assert post(cramped, body)[0] == 200
    for path in ("/healthz", "/readyz", "/", "/docs", "/openapi.json"):
        assert cramped.call("GET", path)[0] == 200
    assert KEY not in cramped.read_log()


def wait_until(server: Server, *lines: str) -> None:
    """Until all these lines stand in /metrics."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        text = server.call("GET", "/metrics", headers={"X-API-Key": KEY})[1]
        if all(f"\n{line}\n" in text for line in lines):
            return
        time.sleep(0.02)
    raise AssertionError(f"waited in vain for {lines}: {text}")


def idle(server: Server) -> None:
    wait_until(server, "pusl_queue_texts 0.0", "pusl_http_open_requests 1.0")  # the one is this request itself


def test_overload_is_refused_at_once_and_the_rest_is_answered(cramped: Server) -> None:
    def ask(seed: int) -> tuple[int, float, dict[str, str]]:
        begun = time.monotonic()
        status, _, headers = post(cramped, {"texts": [make_text(seed), make_text(seed + 1)], "k": 2})
        return status, time.monotonic() - begun, headers

    idle(cramped)
    with ThreadPoolExecutor(20) as pool:
        with cramped.frozen_worker():
            answers = [pool.submit(ask, seed) for seed in range(20)]
            # Two texts are with the frozen worker and 6 may wait: 4 requests of 2 texts are in, 16 are refused.
            wait_until(cramped, 'pusl_http_requests_total{path="/v1/keyphrases",status="429"} 16.0')
        found = [answer.result() for answer in answers]
    assert sorted(status for status, _, _ in found) == [200] * 4 + [429] * 16
    for status, seconds, headers in found:
        if status == 429:
            assert 1 <= int(headers["retry-after"]) <= 60
            assert seconds < 2


def test_a_model_that_hangs_gives_504_and_the_queue_is_freed(cramped: Server) -> None:
    idle(cramped)
    with ThreadPoolExecutor(3) as pool, cramped.frozen_worker():
        answers = list(pool.map(lambda seed: post(cramped, {"texts": [make_text(seed)] * 2, "k": 2}), range(3)))
        assert [status for status, _, _ in answers] == [504] * 3
        assert "within 4 s" in answers[0][1]["error"]["message"]
        idle(cramped)
    assert post(cramped, {"texts": ["x"], "k": 1})[0] == 200


def test_work_of_a_client_that_left_is_dropped(cramped: Server) -> None:
    idle(cramped)
    body = json.dumps({"texts": [make_text(1)] * 6, "k": 2}).encode()
    head = f"POST /v1/keyphrases HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nX-API-Key: {KEY}\r\n"
    with cramped.frozen_worker():
        with socket.create_connection(("127.0.0.1", cramped.port)) as connection:
            connection.sendall(f"{head}X-Request-ID: leaver\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
            wait_until(cramped, "pusl_queue_texts 4.0")
        wait_until(cramped, "pusl_queue_texts 0.0", 'pusl_texts_dropped_total{reason="client_gone"} 4.0')
    assert next(line for line in cramped.log_lines() if line.get("request_id") == "leaver")["status"] == 499
    assert post(cramped, {"texts": ["x"], "k": 1})[0] == 200


def test_slow_uploads_and_slow_readers_do_not_block_others(cramped: Server) -> None:
    idle(cramped)
    head = f"POST /v1/keyphrases HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nX-API-Key: {KEY}\r\n"
    with (
        socket.create_connection(("127.0.0.1", cramped.port), timeout=30) as uploader,
        socket.create_connection(("127.0.0.1", cramped.port), timeout=30) as reader,
    ):
        uploader.sendall(f"{head}Content-Length: 1000\r\n\r\n{{".encode())
        body = json.dumps({"texts": ["x"], "k": 2}).encode()
        reader.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)  # and reads much later
        for _ in range(5):
            assert post(cramped, {"texts": ["y"], "k": 1})[0] == 200
        assert b" 408 " in uploader.recv(4096)
        assert b" 200 " in reader.recv(4096)


def test_sigterm_answers_what_was_accepted(cramped: Server, generator: Any) -> None:
    """The last test with this server."""
    idle(cramped)
    texts = [make_text(seed, 20) for seed in range(6)]
    with ThreadPoolExecutor(3) as pool:
        with cramped.frozen_worker():
            waiting = [pool.submit(post, cramped, {"texts": texts[i : i + 2], "k": 4}) for i in (0, 2, 4)]
            wait_until(cramped, "pusl_queue_texts 4.0")
            cramped.process.send_signal(signal.SIGTERM)
            time.sleep(0.3)
            with pytest.raises(ConnectionError):  # nothing new is taken
                cramped.call("GET", "/healthz")
        answers = [one.result() for one in waiting]
    assert cramped.stop() == 0
    assert [status for status, _, _ in answers] == [200] * 3
    results = [result for _, answer, _ in answers for result in answer["results"]]
    assert all(same(result, wanted) for result, wanted in zip(results, generator.generate(texts, 4), strict=True))
    assert json.loads(cramped.last_log.splitlines()[-1])["event"] == "stopped"


@pytest.mark.slow
def test_sigterm_ends_although_a_worker_hangs(model: Path) -> None:
    with Server(model, "--timeout", "1") as server:
        server.wait_ready()
        os.kill(server.worker_pid(), signal.SIGSTOP)
        assert server.ask([make_text(1)])[0] == 504
        begun = time.monotonic()
        assert server.stop(seconds=55) == 0
        assert time.monotonic() - begun < 30


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--model", "nowhere"], "not a PUSL model"),
        (["--model", "{model}", "--port", "{busy}"], "cannot listen there"),
        (["--model", "{model}", "--host", "no such host"], "cannot listen there"),
        (["--model", "{model}", "--port", "70000"], "--port 70000"),
        (["--model", "{model}", "--api-key-env", "UNSET_KEY_VARIABLE"], "UNSET_KEY_VARIABLE"),
        (["--model", "{model}", "--max-queue", "5"], "--max-queue 5"),
        (["--model", "{model}", "--workers", "0"], "workers"),
        (["--model", "{model}", "--universe", "nowhere.txt"], "nowhere.txt"),
        ([], "--model"),
    ],
)
def test_bad_flags_are_exit_code_2(
    model: Path, flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        filled = [flag.format(model=model, busy=busy.getsockname()[1]) for flag in flags]
        try:
            code = main(["serve", *filled])
        except SystemExit as stopped:
            code = stopped.code
    told = capsys.readouterr().err
    assert code == 2
    assert message in told
    assert "Traceback" not in told
    assert len(told.strip().splitlines()) <= 2


def test_a_damaged_model_is_exit_code_2_and_not_a_dead_service(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for file in model.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "model.safetensors").write_bytes(b"not a model")
    assert main(["serve", "--model", str(tmp_path), "--port", "0"]) == 2
    assert "cannot be loaded" in capsys.readouterr().err
