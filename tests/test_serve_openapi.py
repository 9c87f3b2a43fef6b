"""The service against its own OpenAPI description: schemathesis makes requests from it, right ones and wrong ones."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from server_process import shared_server

schemathesis = pytest.importorskip("schemathesis", reason="needs schemathesis")
pytest.importorskip("fastapi", reason="needs the extra `serve`")

from schemathesis import GenerationMode  # noqa: E402
from schemathesis.checks import not_a_server_error  # noqa: E402
from schemathesis.specs.openapi.checks import (  # noqa: E402
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

pytestmark = pytest.mark.slow
CHECKS = [
    not_a_server_error, content_type_conformance, response_schema_conformance, status_code_conformance,
]  # fmt: skip
EXAMPLES = {"POST": 60, "GET": 5}


@pytest.fixture(scope="module")
def schema() -> Any:
    server = shared_server().wait_ready()
    return schemathesis.openapi.from_url(server.url + "/openapi.json")


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=lambda mode: mode.name)
def test_every_answer_is_as_described(schema: Any, mode: Any) -> None:
    operations = [found.ok() for found in schema.get_all_operations()]
    assert {operation.path for operation in operations} >= {"/v1/keyphrases", "/v1/model", "/healthz", "/readyz"}
    for operation in operations:
        method = operation.method.upper()
        if mode is GenerationMode.NEGATIVE and method == "GET":
            continue  # no parameters, so nothing can be wrong
        statuses = set()

        @seed(20261118)
        @settings(
            max_examples=EXAMPLES[method], deadline=None, database=None, suppress_health_check=list(HealthCheck),
            phases=[Phase.explicit, Phase.generate],
        )  # fmt: skip
        @given(case=operation.as_strategy(generation_mode=mode))
        def ask(case: Any) -> None:
            answer = case.call(timeout=60)
            statuses.add(answer.status_code)  # noqa: B023
            case.validate_response(answer, checks=CHECKS)
            if answer.status_code >= 400:
                error = json.loads(answer.content)["error"]
                assert error["code"] and "\n" not in error["message"] and len(error["message"]) < 300

        ask()
        assert statuses, operation.path
        if mode is GenerationMode.NEGATIVE:
            assert 200 not in statuses and statuses & {400, 415, 422}
