"""HTTP requests -> checked options -> keyphrases as JSON, and a page for people.

The routes of the service. `service.py` has the queue and the model processes behind them, `gateway.py` what is the
same for all paths, and `server.py` the listening socket.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import logging
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException

from pusl import __version__
from pusl.serve.batching import Ticket, TooSlow, WorkerLost
from pusl.serve.bodies import StrictRoute, checked_options, mistake
from pusl.serve.costs import check_work, text_costs, units_per_text
from pusl.serve.gateway import Gateway, Problem
from pusl.serve.schemas import ERRORS, KeyphraseRequest, KeyphraseResponse, pick
from pusl.serve.serve_config import ServeConfig
from pusl.serve.service import Service
from pusl.serve.worker import TextWithKnown, WorkerError
from pusl_eval.files import InputError

log = logging.getLogger("pusl.serve.app")
PATHS = frozenset({"/", "/docs", "/openapi.json", "/healthz", "/readyz", "/metrics", "/v1/keyphrases", "/v1/model"})
PROTECTED = ("/v1/", "/metrics")


def create_app(
    config: ServeConfig, api_key: str | None = None, hosts: frozenset[str] | None = None, max_open: int | None = None
) -> FastAPI:
    """The ASGI application. `app.state.service` is the `Service` behind it."""
    service = Service(config)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async def load() -> None:
            try:
                await service.start()
                log.info("ready", extra={"facts": {"model": service.info["model"], "workers": config.workers}})
            except (InputError, WorkerError, WorkerLost) as error:
                service.failure, service.state = error, "broken"
                service.on_failure()

        loading = asyncio.create_task(load(), name="load")
        yield
        if not loading.done():
            loading.cancel()
        await service.stop()
        log.info("stopped")

    app = FastAPI(
        title="PUSL", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None, redirect_slashes=False,
        description="Unique, scored keyphrases for texts, from a model trained on incomplete labels.",
    )  # fmt: skip
    app.state.service = service
    app.add_middleware(
        Gateway, telemetry=service.telemetry, paths=PATHS, protected=PROTECTED, api_key=api_key,
        max_body=int(config.max_body_mib * 2**20), max_open=max_open or config.max_open, body_timeout=config.timeout,
        refuse=service.refusal, hosts=hosts,
    )  # fmt: skip
    _add_errors(app)
    _add_api(app, service, api_key is not None)
    _add_pages(app)
    describe = app.openapi

    def openapi() -> dict[str, Any]:
        schema = describe()
        fields = schema["components"]["schemas"]["KeyphraseRequest"]["properties"]
        fields["k"]["anyOf"][0]["maximum"] = config.max_k
        fields["texts"]["maxItems"], fields["texts"]["items"]["maxLength"] = config.max_texts, config.max_chars
        fields["known"]["anyOf"][0]["maxItems"] = config.max_texts
        return schema

    app.openapi = openapi  # type: ignore[method-assign]
    return app


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(Problem)
    async def problem(request: Request, error: Problem) -> Response:
        request.scope["pusl.facts"]["code"] = error.code
        return Response(error.body(), error.status, error.headers())

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        found = {
            400: "the body is not JSON",
            404: "no such path; see /docs",
            405: "this method is not allowed here; see /docs",
        }
        code = {400: "not_json", 404: "not_found", 405: "wrong_method"}.get(error.status_code, "http_error")
        request.scope["pusl.facts"]["code"] = code
        answer = Problem(error.status_code, code, found.get(error.status_code, str(error.detail)))
        return Response(answer.body(), answer.status, {**answer.headers(), **(error.headers or {})})

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        if first["type"] == "json_invalid":
            return await problem(request, Problem(400, "not_json", f"the body is not JSON: {first['ctx']['error']}"))
        return await problem(request, Problem(422, "invalid", mistake(first)))


def _add_api(app: FastAPI, service: Service, locked: bool) -> None:
    config = service.config
    app.router.route_class = StrictRoute

    @app.post("/v1/keyphrases", response_model=KeyphraseResponse, responses=ERRORS, tags=["keyphrases"])
    async def keyphrases(body: KeyphraseRequest, request: Request) -> Response:
        """Generates k unique, scored keyphrases for each text."""
        facts = request.scope["pusl.facts"]
        facts["texts"], facts["known"] = len(body.texts), sum(map(len, body.known or ()))
        options = checked_options(body, config, service.info)
        facts.update({name: options[name] for name in ("k", "strategy", "vocabulary")})
        items: list[TextWithKnown] = list(zip(body.texts, body.known or [[]] * len(body.texts), strict=True))
        unit = units_per_text(options, max(map(len, body.known or ()), default=0))
        check_work(len(items), unit, config.max_work)
        client = (request.scope.get("client") or ("",))[0]
        ticket = service.submit(items, tuple(options.items()), text_costs(body.texts, unit), client)
        results = await _outcome(ticket, service, request)
        facts["queue_ms"], facts["batches"] = round(ticket.waited() * 1000, 1), ticket.batches
        if results is None:
            facts["status"] = 499
            return Response(status_code=499)
        service.telemetry.queue_wait.observe(ticket.waited())
        service.telemetry.texts.inc(len(results))
        service.telemetry.keyphrases.inc(sum(len(result["keyphrases"]) for result in results))
        return JSONResponse({"model": service.info["model"], "k": options["k"], "results": results})

    @app.get("/v1/model", responses=pick(401, 421, 503), tags=["keyphrases"])
    async def model() -> JSONResponse:
        """The model, its strategies and defaults, and the limits of this server."""
        if not service.info:
            raise Problem(503, service.state, f"the service is {service.state}", retry_after=2)
        limits = {"max_k": config.max_k, "max_texts": config.max_texts, "max_chars": config.max_chars}
        limits |= {"max_body_bytes": int(config.max_body_mib * 2**20), "max_work": config.max_work}
        return JSONResponse({**service.info, "limits": limits, "version": __version__})

    @app.get("/healthz", tags=["operations"])
    async def healthz() -> JSONResponse:
        """The process is alive."""
        return JSONResponse({"status": "ok"})

    @app.get("/readyz", responses={503: {"description": "Not ready; `status` says why."}}, tags=["operations"])
    async def readyz() -> JSONResponse:
        """The model is loaded, a model process answers, and the service accepts requests."""
        state, well = service.status(), service.well()
        ready = state == "ready"
        answer = {"status": state, "workers": well, "queued": service.batcher.queued if ready else 0, "locked": locked}
        return JSONResponse(answer, 200 if ready else 503, None if ready else {"retry-after": "2"})

    @app.get("/metrics", responses=pick(401, 421), response_class=PlainTextResponse, tags=["operations"])
    async def metrics() -> Response:
        """Prometheus text format."""
        return Response(generate_latest(service.telemetry.registry), media_type=CONTENT_TYPE_LATEST)


async def _outcome(ticket: Ticket, service: Service, request: Request) -> list[Any] | None:
    """The results, or None if the client disconnected first. Raises a Problem on a timeout or if the model failed."""
    gone = asyncio.ensure_future(_disconnected(request))
    either: set[asyncio.Future[Any]] = {ticket.done, gone}
    try:
        await asyncio.wait(either, timeout=service.config.timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone.cancel()
    if not ticket.done.done():
        left = gone.done() and not gone.cancelled()
        dropped = service.batcher.cancel(ticket)
        service.telemetry.dropped.labels("client_gone" if left else "timeout").inc(dropped)
        if left:
            return None
        raise Problem(504, "timeout", f"no answer within {service.config.timeout:g} s; send fewer texts or try later")
    try:
        return ticket.done.result()
    except TooSlow as error:
        raise Problem(
            422, "too_slow",
            f"texts.{error.text}: needs more than {error.seconds:.2g} s of work; lower k or num_beams, or shorten it",
        ) from None  # fmt: skip
    except InputError as error:
        raise Problem(422, "invalid", str(error)) from None
    except WorkerLost:
        raise Problem(503, "worker_lost", "the model process ended unexpectedly; try again", retry_after=5) from None
    except WorkerError as error:
        log.error("worker_error", extra={"facts": {"error": str(error)}})
        raise Problem(500, "internal", "the model failed on this request; look for the request id in the log") from None


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _add_pages(app: FastAPI) -> None:
    folder = Path(__file__).parent
    head = (folder / "head.html").read_text(encoding="utf-8")
    for path, name, title in (("/", "page.html", "PUSL · keyphrases"), ("/docs", "docs.html", "PUSL · API")):
        html = head.replace("TITLE", title) + (folder / name).read_text(encoding="utf-8")
        app.add_api_route(path, _page(html), include_in_schema=False, response_class=HTMLResponse)


def _page(html: str) -> Any:
    """A handler for a self-contained page. The browser may run its own script and talk to this server, nothing else."""
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
        for script in re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    )
    policy = (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )

    async def page() -> HTMLResponse:
        return HTMLResponse(html, headers={"content-security-policy": policy, "cache-control": "no-cache"})

    return page
