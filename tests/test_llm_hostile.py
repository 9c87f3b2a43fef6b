"""What a hostile or broken endpoint sends must not reach the store, the terminal or the next run."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import stat
import subprocess
import sys
import time

import pytest
from fake_endpoint import FakeEndpoint, _Handler

from pusl.cli import main
from pusl.llm import fake_endpoint as rules
from pusl.llm.answers import Answer, AnswerStore
from pusl.llm.client import LLMClient, LLMGenerator
from pusl.llm.endpoint import EndpointError, LLMSettings, read_answer
from pusl.llm.prompts import item_block, judge_prompt, parse_verdicts
from pusl_eval.files import InputError

KEY = "sk-test-0123456789abcdefghij"
SECRET = "query+secret/0123456789"
PROMPT = judge_prompt(item_block({"text": "red running shoe"}), ["red shoe"])


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)


def settings(endpoint: FakeEndpoint, **changes) -> LLMSettings:
    return LLMSettings(**{"model": "fake", "base_url": endpoint.url, "backoff": 0.005, **changes})


def answering(content: str):
    """Replaces the endpoint's answers by one fixed text."""

    def answer(self, body, fault):
        self.reply(200, rules.completion("m", content, body["messages"]))

    return answer


@pytest.mark.parametrize("half", ["\ud800", "\\ud800"], ids=["in the answer", "in the JSON of the answer"])
def test_a_lone_surrogate_does_not_poison_the_store(tmp_path, monkeypatch, capsys, half):
    monkeypatch.setattr(_Handler, "answer", answering(f'{{"keyphrases": ["red {half} shoe", "boot"]}}'))
    (tmp_path / "items.jsonl").write_text('{"id": "a", "text": "red shoe"}\n')
    with FakeEndpoint() as endpoint:
        for name in ("one.jsonl", "two.jsonl"):
            command = ["generate", "--llm", "fake", "--base-url", endpoint.url, "--input", f"{tmp_path}/items.jsonl"]
            assert main([*command, "--output", f"{tmp_path}/{name}", "-k", "2", "--quiet"]) == 0, capsys.readouterr()
            assert json.loads((tmp_path / name).read_text())["keyphrases"] == ["red ? shoe", "boot"]
        assert len(endpoint.bodies) == 1


def test_a_store_that_already_holds_a_surrogate_can_be_read(tmp_path):
    with AnswerStore(tmp_path / "s.sqlite") as store:
        store.save("k", PROMPT, Answer("a \ud800 b", finish="stop"), "m", "e")
        found = store.answer("k")
    assert found is not None and found.text == "a ? b"


def test_damaged_bytes_in_the_store_are_asked_for_again(tmp_path):
    path = tmp_path / "answers.sqlite"
    with FakeEndpoint() as endpoint:
        for _ in range(2):
            generator = LLMGenerator(settings(endpoint), path)
            assert generator.generate(["red shoe"], k=1)[0].keyphrases == ["red shoe"]
            generator.close()
            base = sqlite3.connect(path)
            base.execute("UPDATE answers SET answer = substr(answer, 5)")
            base.commit()
            base.close()
        assert len(endpoint.bodies) == 2


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX modes")
def test_the_store_is_readable_by_its_owner_only(tmp_path):
    before = os.umask(0o022)
    try:
        with AnswerStore(tmp_path / "answers.sqlite") as store:
            store.save("k", PROMPT, Answer("yes", finish="stop"), "m", "e")
            modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    finally:
        os.umask(before)
    assert "answers.sqlite" in modes and set(modes.values()) == {0o600}, modes


def test_a_secret_in_the_address_is_sent_but_never_shown(tmp_path, capsys):
    (tmp_path / "items.jsonl").write_text('{"id": "a", "text": "red shoe"}\n')
    with FakeEndpoint() as endpoint:  # answers 404 with the whole path
        url = f"{endpoint.url}?api-key=query%2Bsecret/0123456789&v=2"
        command = ["generate", "--llm", "fake", "--base-url", url, "--input", f"{tmp_path}/items.jsonl"]
        assert main([*command, "--output", f"{tmp_path}/out.jsonl", "-k", "1", "--quiet"]) == 2
        assert len(endpoint.bodies) == 1
    shown = capsys.readouterr()
    assert "/v1/chat/completions" in shown.err and "[key]" in shown.err
    for text in (SECRET, "query%2Bsecret", "0123456789"):
        assert text not in shown.out + shown.err
    stored = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"secret" not in stored


def test_parameters_of_the_address_go_with_every_request(monkeypatch):
    paths = []
    respond = _Handler.respond

    def spy(self, body):
        paths.append(self.path)
        self.path = self.path.partition("?")[0]
        respond(self, body)

    monkeypatch.setattr(_Handler, "respond", spy)
    with FakeEndpoint() as endpoint:
        url = endpoint.url + "?api-version=2024-10-21"
        with LLMClient(settings(endpoint, base_url=url)) as client:
            client.ask(PROMPT)
    assert paths == ["/v1/chat/completions?api-version=2024-10-21"]


def test_escape_sequences_of_an_endpoint_do_not_reach_the_terminal():
    with FakeEndpoint(["404"], model="\x1b[2Jother") as endpoint, LLMClient(settings(endpoint)) as client:
        endpoint.model = "other"
        monkey = "\x1b[31mred\x07"
        client.settings = settings(endpoint, model=monkey)
        with pytest.raises(InputError) as stop:
            client.ask(PROMPT)
    assert "\x1b" not in str(stop.value) and "\x07" not in str(stop.value)


def test_a_key_that_is_echoed_with_escapes_is_not_stored(monkeypatch):
    echoed = "".join(f"\\u{ord(letter):04x}" for letter in KEY)
    body = json.dumps(rules.completion("m", "KEY", [])).replace("KEY", f"your key is {echoed}")
    assert KEY in (read_answer(body).text or "")
    monkeypatch.setattr(_Handler, "answer", lambda self, *_: self.raw(body.encode()))
    with FakeEndpoint() as endpoint, LLMClient(settings(endpoint)) as client:
        assert client.ask(PROMPT).text == "your key is [key]"


def test_a_key_that_the_json_of_an_answer_spells_is_not_stored(monkeypatch):
    echoed = "".join(f"\\u{ord(letter):04X}" if place % 2 else letter for place, letter in enumerate(KEY))
    monkeypatch.setattr(_Handler, "answer", answering(json.dumps({"keyphrases": ["KEY"]}).replace("KEY", echoed)))
    with FakeEndpoint() as endpoint, LLMClient(settings(endpoint)) as client:
        assert client.ask(PROMPT).text == '{"keyphrases": ["[key]"]}'


@pytest.mark.slow
def test_a_dripping_answer_does_not_outlast_the_timeout(monkeypatch):
    def drip(self, body, fault):
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        for _ in range(1000):
            self.wfile.write(b" ")
            time.sleep(0.05)

    monkeypatch.setattr(_Handler, "answer", drip)
    with FakeEndpoint() as endpoint, LLMClient(settings(endpoint, timeout=0.5, retries=1)) as client:
        begun = time.monotonic()
        with pytest.raises(EndpointError, match="timeout"):
            client.ask(PROMPT)
        assert time.monotonic() - begun < 10


def test_an_endless_answer_is_given_up(monkeypatch):
    monkeypatch.setattr("pusl.llm.client._LONGEST_BODY", 10_000)
    monkeypatch.setattr(_Handler, "answer", lambda self, *_: self.raw(b" " * 100_000))
    too_long = pytest.raises(EndpointError, match="more than 10,000 bytes")
    with FakeEndpoint() as endpoint, LLMClient(settings(endpoint, retries=0)) as client, too_long:
        client.ask(PROMPT)


def test_the_rule_based_endpoint_starts_from_the_package(tmp_path):
    command = [sys.executable, "-m", "pusl.llm.fake_endpoint", "--port"]
    with subprocess.Popen([*command, "0"], stdout=subprocess.PIPE, text=True, cwd=tmp_path) as server:
        try:
            assert server.stdout
            url = re.search(r"http://127\.0\.0\.1:(\d+)/v1", server.stdout.readline())
            assert url
            with LLMClient(LLMSettings(model="fake", base_url=url[0])) as client:
                assert parse_verdicts(client.ask(PROMPT).text, 1) == [True]
            taken = subprocess.run([*command, url[1]], capture_output=True, text=True, cwd=tmp_path, timeout=60)
            assert taken.returncode == 2 and "in use" in taken.stderr and "Traceback" not in taken.stderr
        finally:
            server.kill()
