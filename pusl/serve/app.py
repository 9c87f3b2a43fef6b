"""HTTP requests -> batches -> keyphrases as JSON, and a page for people.

The web process parses, queues and answers; model processes (`pusl.serve.worker`) compute. Every
accepted request is answered, even while the service is stopping.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import hashlib
import logging
import os
import re
import signal
import socket
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException

from pusl import __version__
from pusl.devices import gpu_count, resolve_device, worker_environment
from pusl.serve.batching import Batcher, Closed, QueueFull, Ticket, WorkerLost
from pusl.serve.gateway import Gateway, Problem, Telemetry, set_up_logs
from pusl.serve.schemas import ERRORS, KeyphraseRequest, KeyphraseResponse
from pusl.serve.serve_config import ServeConfig, check_config, read_api_key
from pusl.serve.worker import TextWithKnown, Worker, WorkerError
from pusl_eval.files import InputError

log = logging.getLogger("pusl.serve.app")
PATHS = frozenset({"/", "/docs", "/openapi.json", "/healthz", "/readyz", "/metrics", "/v1/keyphrases", "/v1/model"})
PROTECTED = ("/v1/", "/metrics")
LOOPBACK = ("127.0.0.1", "localhost", "::1")
STOP_SECONDS = 10.0  # for batches under way after the last request has ended


class Service:
    """The model processes, the batcher in front of them, and whether they are ready."""

    def __init__(self, config: ServeConfig) -> None:
        self.config, self.telemetry = config, Telemetry()
        self.state = "loading"
        self.failure: Exception | None = None
        self.on_failure: Callable[[], None] = lambda: None  # called if the model cannot be loaded
        self.info: dict[str, Any] = {}
        threads = config.threads or max(1, (os.cpu_count() or 1) // config.workers)
        settings = {name: getattr(config, name) for name in ("model", "universe", "precision", "device")}
        self._settings = {**settings, "threads": threads, "batch_size": config.max_batch}
        self.workers: list[Worker] = []

    async def start(self) -> None:
        """Loads the model in every worker. Until then the service is alive but not ready."""
        config = self.config
        gpus = gpu_count(resolve_device(config.device)) if config.workers > 1 else 0
        self.workers = [
            Worker(self._settings, max(60.0, 4 * config.timeout), worker_environment(number, gpus))
            for number in range(config.workers)
        ]
        self._idle: asyncio.Queue[Worker] = asyncio.Queue()
        self.batcher = Batcher(
            self._run, max_batch=config.max_batch, max_wait=config.max_wait_ms / 1000, max_queue=config.max_queue,
            max_delay=config.timeout, workers=config.workers, ahead=config.workers,
        )  # fmt: skip
        self.batcher.start()
        self.telemetry.queued.set_function(lambda: self.batcher.queued)
        self.telemetry.restarts.set_function(lambda: sum(max(0, worker.restarts) for worker in self.workers))
        self.telemetry.ready.set_function(lambda: self.state == "ready")
        # The first worker starts alone: it may have to build the universe's index, which the others then load.
        self.info = await self.workers[0].start()
        await asyncio.gather(*(worker.start() for worker in self.workers[1:]))
        for worker in self.workers * 2:  # twice: a worker computes one batch while the next waits in its pipe
            self._idle.put_nowait(worker)
        self.state = "ready"
        self._watch = asyncio.create_task(self._replace_dead_workers(), name="replace-dead-workers")

    async def stop(self) -> None:
        """Answers every accepted request, then ends the model processes, even one that hangs."""
        ready, self.state = self.state == "ready", "stopping"
        if ready:
            # Requests have timed out by now; whatever a worker still computes has no reader.
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.batcher.close(), STOP_SECONDS)
            self._watch.cancel()
        for worker in self.workers:
            await worker.stop()

    def refusal(self) -> Problem | None:
        """The Problem that any request would get now, or None."""
        if self.state != "ready":
            return Problem(503, self.state, f"the service is {self.state}", retry_after=2)
        if self.batcher.full():
            full = QueueFull(self.batcher.retry_after())
            return Problem(429, "queue_full", str(full), full.retry_after)
        return None

    def submit(self, items: list[TextWithKnown], options: tuple[tuple[str, Any], ...]) -> Ticket:
        """Queues a request. Raises a Problem if there is no room for it."""
        if (problem := self.refusal()) is not None:
            raise problem
        try:
            return self.batcher.submit(items, options)
        except QueueFull as full:
            raise Problem(429, "queue_full", str(full), full.retry_after) from None
        except Closed:
            raise Problem(503, "stopping", "the service is stopping", retry_after=2) from None

    async def _run(self, items: list[TextWithKnown], key: Any) -> list[Any]:
        worker = await self._idle.get()
        try:
            results, seconds = await worker.ask(items, dict(key))
            self.telemetry.batch_size.observe(len(items))
            self.telemetry.batch_time.observe(seconds)
            return results
        finally:
            self._idle.put_nowait(worker)

    async def _replace_dead_workers(self) -> None:
        """Restarts a model process that died between two batches."""
        pause = 0.5
        while True:
            await asyncio.sleep(pause)
            dead = [worker for worker in self.workers if worker.pid is None]
            try:
                for worker in dead:
                    log.warning("worker_replaced")
                    await worker.restart_if_dead()
                pause = 0.5
            except WorkerLost:
                pause = min(60.0, pause * 2)  # the model folder may be gone; do not try again at once


def create_app(config: ServeConfig, api_key: str | None = None) -> FastAPI:
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
        title="PUSL", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None,
        description="Unique, scored keyphrases for texts, from a model trained on incomplete labels.",
    )  # fmt: skip
    app.state.service = service
    app.add_middleware(
        Gateway, telemetry=service.telemetry, paths=PATHS, protected=PROTECTED, api_key=api_key,
        max_body=int(config.max_body_mib * 2**20), max_open=config.max_open, body_timeout=config.timeout,
        refuse=service.refusal,
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
        # The message never repeats the input: that could be a text, or not even valid Unicode.
        place = ".".join(str(part) for part in first["loc"] if part != "body") or "body"
        return await problem(request, Problem(422, "invalid", f"{place}: {first['msg']}"))


def _add_api(app: FastAPI, service: Service, locked: bool) -> None:
    config = service.config

    @app.post("/v1/keyphrases", response_model=KeyphraseResponse, responses=ERRORS, tags=["keyphrases"])
    async def keyphrases(body: KeyphraseRequest, request: Request) -> Response:
        """Generates k unique, scored keyphrases for each text."""
        facts = request.scope["pusl.facts"]
        facts["texts"], facts["known"] = len(body.texts), sum(map(len, body.known or ()))
        options = checked_options(body, config, service.info)
        facts.update({name: options[name] for name in ("k", "strategy", "vocabulary")})
        items: list[TextWithKnown] = list(zip(body.texts, body.known or [[]] * len(body.texts), strict=True))
        ticket = service.submit(items, tuple(options.items()))
        results = await _outcome(ticket, service, request)
        facts["queue_ms"], facts["batches"] = round(ticket.waited() * 1000, 1), ticket.batches
        if results is None:
            facts["status"] = 499
            return Response(status_code=499)
        service.telemetry.queue_wait.observe(ticket.waited())
        service.telemetry.texts.inc(len(results))
        service.telemetry.keyphrases.inc(sum(len(result["keyphrases"]) for result in results))
        return JSONResponse({"model": service.info["model"], "k": options["k"], "results": results})

    @app.get("/v1/model", tags=["keyphrases"])
    async def model() -> JSONResponse:
        """The model, its strategies and defaults, and the limits of this server."""
        if not service.info:
            raise Problem(503, service.state, f"the service is {service.state}", retry_after=2)
        limits = {"max_k": config.max_k, "max_texts": config.max_texts, "max_chars": config.max_chars}
        limits["max_body_bytes"] = int(config.max_body_mib * 2**20)
        return JSONResponse({**service.info, "limits": limits, "version": __version__})

    @app.get("/healthz", tags=["operations"])
    async def healthz() -> JSONResponse:
        """The process is alive."""
        return JSONResponse({"status": "ok"})

    @app.get("/readyz", tags=["operations"])
    async def readyz() -> JSONResponse:
        """The model is loaded and the service accepts requests."""
        alive = sum(worker.pid is not None for worker in service.workers)
        ready = service.state == "ready" and alive > 0
        state = "ready" if ready else "restarting" if service.state == "ready" else service.state
        answer = {"status": state, "workers": alive, "queued": service.batcher.queued if ready else 0, "locked": locked}
        return JSONResponse(answer, 200 if ready else 503, None if ready else {"retry-after": "2"})

    @app.get("/metrics", tags=["operations"])
    async def metrics() -> Response:
        """Prometheus text format."""
        return Response(generate_latest(service.telemetry.registry), media_type=CONTENT_TYPE_LATEST)


def checked_options(body: KeyphraseRequest, config: ServeConfig, info: dict[str, Any]) -> dict[str, Any]:
    """The request's options with defaults filled in, or the Problem that names the field and the limit."""
    if len(body.texts) > config.max_texts:
        raise Problem(413, "too_many_texts", f"texts: {len(body.texts)}; at most {config.max_texts} per request")
    if body.known is not None and len(body.known) != len(body.texts):
        raise Problem(422, "invalid", f"known: {len(body.known)} lists for {len(body.texts)} texts")
    if body.known is not None and (body.temperature or body.allow_repeats):
        raise Problem(422, "invalid", "known: cannot be combined with temperature or allow_repeats")
    written = [(f"texts.{i}", text) for i, text in enumerate(body.texts)]
    written += [(f"known.{i}", " ".join(phrases)) for i, phrases in enumerate(body.known or ())]
    for place, text in written:
        if len(text) > config.max_chars:
            raise Problem(413, "text_too_long", f"{place}: {len(text)} characters; at most {config.max_chars}")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise Problem(422, "invalid", f"{place}: is not valid Unicode (it holds half a surrogate pair)") from None
    options = body.model_dump(exclude={"texts", "known"})
    options["complete"] = body.known is not None  # texts with and without known keyphrases are batched separately
    options["k"] = body.k or min(info["defaults"]["k"], config.max_k)
    if options["k"] > config.max_k:
        raise Problem(422, "invalid", f"k: {body.k} is above this server's limit of {config.max_k}")
    options["strategy"] = body.strategy or info["defaults"]["strategy"]
    if options["strategy"] not in info["strategies"]:
        raise Problem(
            422, "invalid", f"strategy: not available for this model; available: {', '.join(info['strategies'])}"
        )
    if body.vocabulary not in info["vocabularies"]:
        raise Problem(
            422, "invalid", f"vocabulary: '{body.vocabulary}' needs a universe; start the server with --universe FILE"
        )
    return options


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


class Server(uvicorn.Server):
    """Uvicorn that prints its address once it listens, and that returns normally after SIGTERM or Ctrl-C:
    a service that has answered everything has succeeded."""

    greeting = ""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listens, then prints the address."""
        await super().startup(sockets)
        print(self.greeting, flush=True)

    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        """Handles both signals while the server runs; a second one stops it at once."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def serve(config: ServeConfig) -> None:
    """Runs the service until SIGTERM or Ctrl-C, then answers every request accepted by then."""
    check_config(config)
    api_key = read_api_key(config.api_key_env)
    set_up_logs(config.log_level)
    listener = bind(config.host, config.port)
    host, port = listener.getsockname()[:2]
    if config.host not in LOOPBACK and api_key is None:
        log.warning("open_to_the_network", extra={"facts": {"host": config.host, "advice": "set --api-key-env"}})
    app = create_app(config, api_key)
    server = Server(
        uvicorn.Config(
            app, log_config=None, access_log=False, server_header=False, lifespan="on", timeout_keep_alive=30,
            timeout_graceful_shutdown=int(config.timeout) + 5, backlog=1024,
        )
    )  # fmt: skip
    app.state.service.on_failure = functools.partial(setattr, server, "should_exit", True)
    server.greeting = f"PUSL is at http://{f'[{host}]' if ':' in host else host}:{port}  (Ctrl-C stops it)"
    with listener:
        server.run([listener])
    failure = app.state.service.failure
    if failure is not None:
        raise failure


def bind(host: str, port: int) -> socket.socket:
    """A bound socket. An InputError says why the address cannot be used."""
    with contextlib.ExitStack() as undo:
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            listener = undo.enter_context(socket.socket(family, kind, protocol))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        except OSError as error:
            reason = error.strerror or str(error)
            raise InputError(
                f"--host {host} --port {port}: cannot listen there ({reason}); try another address or port"
            ) from None
        undo.pop_all()
    return listener
