"""The client against a real HTTP server that misbehaves."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time

import pytest
from fake_endpoint import TRANSPORT, FakeEndpoint

from pusl.llm.answers import Answer, AnswerStore, Verdict, key_of
from pusl.llm.client import LLMClient
from pusl.llm.endpoint import BadAnswer, EndpointError, LLMSettings, RequestFailed, read_answer, retry_after
from pusl.llm.prompts import item_block, judge_prompt, parse_verdicts
from pusl.llm.threads import run_all
from pusl_eval.files import InputError

pytestmark = pytest.mark.slow  # real HTTP endpoints and pauses

KEY = "sk-test-0123456789abcdefghij"
PROMPT = judge_prompt(item_block({"text": "red running shoe"}), ["red shoe", "teapot"])


def settings(endpoint: FakeEndpoint, **changes) -> LLMSettings:
    return LLMSettings(**{"model": "fake", "base_url": endpoint.url, "backoff": 0.005, "timeout": 10.0, **changes})


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)


@pytest.mark.parametrize("fault", [*TRANSPORT, "529"])
def test_passing_faults_are_retried_and_counted(fault):
    with FakeEndpoint([fault, fault], slow=0.5) as endpoint:
        with LLMClient(settings(endpoint, timeout=0.15 if fault == "slow" else 10.0)) as client:
            answer = client.ask(PROMPT)
        assert parse_verdicts(answer.text, 2) == [True, False]
        assert (client.usage.requests, client.usage.retries, client.usage.answers) == (3, 2, 1)
        assert sum(client.usage.faults.values()) == 2
        assert len(endpoint.bodies) == 3


def test_retry_after_is_obeyed_by_every_thread():
    with FakeEndpoint(["429"], retry_after="0.4") as endpoint, LLMClient(settings(endpoint)) as client:
        client.ask(PROMPT)  # meets the limit alone, and waits
        endpoint.faults = ["429"]
        start = time.monotonic()
        for _ in run_all(lambda _: client.ask(PROMPT), range(4), 2):
            pass
        assert 0.4 <= time.monotonic() - start < 5
        assert client.usage.requests == 2 + 4 + 1


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "2"}, 2.0),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "later"}, None),
        ({}, None),
    ],
)
def test_retry_after_forms(headers, seconds):
    assert retry_after(headers) == seconds


def test_a_request_that_never_passes_fails_and_three_in_a_row_stop_the_run():
    with FakeEndpoint(always="500") as endpoint, LLMClient(settings(endpoint, retries=2)) as client:
        for _ in range(2):
            with pytest.raises(RequestFailed, match=r"no answer after 3 tries \(last: HTTP 500\)"):
                client.ask(PROMPT)
        with pytest.raises(EndpointError) as stop:
            client.ask(PROMPT)
        assert not isinstance(stop.value, RequestFailed)
        assert client.usage.requests == len(endpoint.bodies) == 9


@pytest.mark.parametrize(("fault", "words"), [("401", "OPENAI_API_KEY"), ("403", "OPENAI_API_KEY"), ("404", "'fake'")])
def test_wrong_key_address_or_model_stops_at_once(fault, words):
    with FakeEndpoint([fault]) as endpoint, LLMClient(settings(endpoint)) as client:
        with pytest.raises(InputError, match=f"HTTP {fault}") as error:
            client.ask(PROMPT)
        assert words in str(error.value)
        assert KEY not in str(error.value)  # the server echoes it
        assert len(str(error.value).splitlines()) <= 2
        assert len(endpoint.bodies) == 1


@pytest.mark.parametrize("fault", ["quota", "402"])
def test_no_credit_is_not_retried(fault):
    with FakeEndpoint([fault]) as endpoint, LLMClient(settings(endpoint)) as client:
        with pytest.raises(EndpointError, match="no credit"):
            client.ask(PROMPT)
        assert len(endpoint.bodies) == 1


def test_nobody_listens():
    with (
        pytest.raises(RequestFailed, match="refused"),
        LLMClient(LLMSettings(base_url="http://127.0.0.1:9/v1", backoff=0.001, retries=1)) as client,
    ):
        client.ask(PROMPT)


@pytest.mark.parametrize("structured", ["json_schema", "json_object", "text"])
def test_the_strictest_format_the_endpoint_has_is_learned_once(structured):
    with FakeEndpoint(structured=structured, prose=structured == "text") as endpoint:
        with LLMClient(settings(endpoint)) as client:
            for _ in range(3):
                assert parse_verdicts(client.ask(PROMPT).text, 2) == [True, False]
        formats = [(body.get("response_format") or {}).get("type", "text") for body in endpoint.bodies]
        learned = ["json_schema", "json_object", "text"]
        assert formats == learned[: learned.index(structured)] + [structured] * 3


def test_a_complaint_about_one_request_changes_nothing_for_the_others():
    with FakeEndpoint(["400json"] * 3) as endpoint, LLMClient(settings(endpoint)) as client:
        assert "longer than" in client.ask(PROMPT).problem  # every format was tried, in vain
        client.ask(PROMPT)
        formats = [(body.get("response_format") or {}).get("type") for body in endpoint.bodies]
        assert formats == ["json_schema", "json_object", None, "json_schema"]


def test_a_model_without_temperature_and_an_endpoint_without_token_counts():
    with FakeEndpoint(temperature=False, usage=False) as endpoint, LLMClient(settings(endpoint)) as client:
        client.ask(PROMPT)
        client.ask(PROMPT)
        assert ["temperature" in body for body in endpoint.bodies] == [True, False, False]
        assert client.usage.estimated == 2
        assert client.usage.tokens_in > 0


@pytest.mark.parametrize("old_name", [True, False])
def test_the_cap_on_the_answer_is_sent_under_the_names_the_endpoint_takes(old_name):
    with FakeEndpoint(max_tokens=old_name) as endpoint:
        with LLMClient(settings(endpoint, max_answer_tokens=77)) as client:
            client.ask(PROMPT)
            client.ask(PROMPT)
        assert endpoint.bodies[-1]["max_completion_tokens"] == 77
        assert ("max_tokens" in endpoint.bodies[-1]) == old_name
        assert len(endpoint.bodies) == (2 if old_name else 3)


def test_a_server_that_ignores_the_cap_does_not_break_the_budget():
    flags = {"max_answer_tokens": 1, "price_in": 0.0, "price_out": 1000.0, "max_cost": 0.1}
    with FakeEndpoint() as endpoint, LLMClient(settings(endpoint, **flags)) as client:
        with pytest.raises(EndpointError, match="--max-cost"):
            for _ in range(100):
                client.ask(PROMPT)
        assert client.usage.tokens_out > client.usage.answers  # each is longer than the cap
        assert 0.08 < client.settings.cost(0, client.usage.tokens_out) <= 0.1


def test_a_rejected_item_is_no_error_but_an_endpoint_that_rejects_everything_is():
    with FakeEndpoint(["", "400"]) as endpoint, LLMClient(settings(endpoint)) as client:
        client.ask(PROMPT)
        answer = client.ask(PROMPT)
        assert answer.text is None and "filtered" in answer.problem
        client.check_rejections()
        assert client.usage.rejected == 1
    with FakeEndpoint(always="400") as endpoint, LLMClient(settings(endpoint)) as client:
        client.ask(PROMPT)
        with pytest.raises(InputError, match="rejects every request"):
            client.check_rejections()


def test_the_key_goes_only_into_the_header(monkeypatch):
    monkeypatch.setenv("OTHER", "another-key-0123456789")
    with FakeEndpoint(key="another-key-0123456789") as endpoint:
        with LLMClient(settings(endpoint, key_variable="OTHER")) as client:
            client.ask(PROMPT)
        assert endpoint.headers[0]["authorization"] == "Bearer another-key-0123456789"
        assert "another-key" not in json.dumps(endpoint.bodies)
        assert "another-key" not in repr(client.settings)
        with LLMClient(settings(endpoint)) as client, pytest.raises(InputError) as error:
            client.ask(PROMPT)
        assert KEY not in str(error.value)


def test_without_a_key(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY")
    with LLMClient(LLMSettings()) as client, pytest.raises(InputError, match=r"\$OPENAI_API_KEY is not set"):
        client.ask(PROMPT)
    with FakeEndpoint() as endpoint, LLMClient(settings(endpoint)) as client:
        client.ask(PROMPT)  # a local endpoint needs none
    with (
        FakeEndpoint(key=KEY) as endpoint,
        LLMClient(settings(endpoint)) as client,
        pytest.raises(InputError, match="needs an API key"),
    ):
        client.ask(PROMPT)
    monkeypatch.setenv("OPENAI_API_KEY", "kéy")
    with LLMClient(LLMSettings()) as client, pytest.raises(InputError, match="characters") as error:
        client.ask(PROMPT)
    assert "kéy" not in str(error.value)


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://host/v1", "http://", "http://host:port/v1", "v1"])
def test_an_address_that_is_none(url):
    with pytest.raises(InputError, match="--base-url"):
        LLMClient(LLMSettings(base_url=url))  # before a store of answers is made


def test_secrets_in_the_address_are_not_shown():
    shown = LLMSettings(base_url="https://user:secret@host:1/v1?api-key=secret").endpoint
    assert shown == "https://host:1/v1"


def test_the_budget_is_not_exceeded():
    prices = {"price_in": 1000.0, "price_out": 1000.0}
    with FakeEndpoint() as endpoint, LLMClient(settings(endpoint, max_cost=1.0, concurrency=4, **prices)) as client:
        with pytest.raises(EndpointError, match="--max-cost 1 USD"):
            for _ in run_all(lambda _: client.ask(PROMPT), range(100), 4):
                pass
        usage = client.usage
        spent = client.settings.cost(usage.tokens_in, usage.tokens_out)
        one = spent / usage.answers
        assert 1.0 - 5 * one < spent <= 1.0  # used nearly up, never exceeded
        assert len(endpoint.bodies) == usage.answers
    with pytest.raises(InputError, match="--price-in"):
        LLMSettings(max_cost=1.0)


def test_answers_that_got_lost_count_against_the_budget():
    """The endpoint may have billed them, although no token count ever arrived."""
    prices = {"price_in": 1000.0, "price_out": 1000.0, "max_cost": 2.0, "retries": 20}
    with FakeEndpoint() as endpoint, LLMClient(settings(endpoint, **prices)) as client:
        client.ask(PROMPT)
        spent = client.settings.cost(client.usage.tokens_in, client.usage.tokens_out)
        endpoint.faults = ["half"] * 5
        client.ask(PROMPT)
        with pytest.raises(EndpointError, match="--max-cost"):
            for _ in range(round(2.0 / spent) - 7 + 1):
                client.ask(PROMPT)


def test_concurrency_is_real_and_bounded():
    with FakeEndpoint(latency=0.05) as endpoint, LLMClient(settings(endpoint)) as client:
        client.ask(PROMPT)
        assert len(list(run_all(lambda _: client.ask(PROMPT), range(24), 6))) == 24
        assert 3 <= endpoint.most <= 6


def test_run_all_is_lazy_and_finishes_what_is_under_way_before_it_raises():
    taken, finished, before = [], [], set(threading.enumerate())

    def items():
        for number in range(1000):
            taken.append(number)
            yield number

    def work(number):
        if number == 3:
            raise ValueError("three")
        time.sleep(0.02)
        finished.append(number)
        return number

    with pytest.raises(ValueError, match="three"):
        for _ in run_all(work, items(), 4):
            pass
    assert len(taken) < 20
    assert sorted([*finished, 3]) == taken
    for thread in set(threading.enumerate()) - before:
        thread.join(5)
        assert not thread.is_alive()


@pytest.mark.parametrize(
    "body",
    ["", "null", "[]", "{}", '{"choices": []}', '{"choices": [{}]}', '{"choices": [{"message": {"content": 5}}]}',
     '{"choices": [{"message": "x"}]}', "[" * 100_000],
)  # fmt: skip
def test_a_body_that_is_no_completion(body):
    with pytest.raises(BadAnswer):
        read_answer(body)


def test_answers_in_parts_and_filtered_ones():
    parts = {"choices": [{"message": {"content": [{"type": "text", "text": "ye"}, {"type": "text", "text": "s"}]}}]}
    assert read_answer(json.dumps(parts)).text == "yes"
    filtered = {"choices": [{"message": {"content": "ye"}, "finish_reason": "content_filter"}]}
    assert read_answer(json.dumps(filtered)).text is None


def test_store_round_trip_and_strangers(tmp_path):
    path = tmp_path / "answers.sqlite"
    answer = Answer("yes", "", "stop", "m-2026", 7, 1)
    with AnswerStore(path) as store:
        store.save("k", PROMPT, answer, "m", "http://host", {"a": Verdict(True, 1), "b": Verdict(None, 1)})
        store.save("k", PROMPT, answer, "m", "http://host", {"b": Verdict(False, 2)})
    with AnswerStore(path) as store:
        assert store.answer("k") == answer
        assert store.answer("other") is None
        assert store.verdicts(["a", "b", "c"]) == {"a": Verdict(True, 1), "b": Verdict(False, 2)}
    assert sqlite3.connect(path).execute("SELECT count(*) FROM answers").fetchone() == (2,)
    (tmp_path / "text").write_text("this is not a database, but it is long enough to look like one" * 100)
    with pytest.raises(InputError, match="not a usable answer store"):
        AnswerStore(tmp_path / "text")
    other = sqlite3.connect(tmp_path / "other")
    other.execute("CREATE TABLE t (x)")
    other.close()
    with pytest.raises(InputError, match="made by another program or version"):
        AnswerStore(tmp_path / "other")
    with AnswerStore(tmp_path / "none", read_only=True) as store:
        assert store.verdicts(["a"]) == {}
    assert not (tmp_path / "none").exists()
    assert key_of("a", ["b"]) != key_of("a", "b")


def test_store_survives_kill_9(tmp_path):
    """Every answer whose save returned is there after kill -9, together with all its verdicts."""
    code = """
        import sys
        from pusl.llm.answers import Answer, AnswerStore, Verdict
        from pusl.llm.prompts import judge_prompt
        store, prompt = AnswerStore(sys.argv[1]), judge_prompt("", ["x"])
        for number in range(10**9):
            verdicts = {f"{number}/{place}": Verdict(True, 1) for place in range(5)}
            store.save(str(number), prompt, Answer("a"), "m", "e", verdicts)
            print(number, flush=True)
    """
    path = tmp_path / "answers.sqlite"
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), path], stdout=subprocess.PIPE, text=True
    ) as child:
        for line in child.stdout:
            last = int(line)
            if last >= 50:
                os.kill(child.pid, signal.SIGKILL)
                break
        last = max([last, *map(int, child.stdout.read().split("\n")[:-1])])
    with AnswerStore(path) as store:
        for number in range(last + 1):
            assert store.answer(str(number)) == Answer("a")
            assert len(store.verdicts([f"{number}/{i}" for i in range(5)])) == 5
