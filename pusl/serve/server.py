"""An address -> a running service: the listening socket, its limits, and signals."""

from __future__ import annotations

import contextlib
import functools
import logging
import signal
import socket
import threading
from typing import Any

import uvicorn

from pusl.serve.app import create_app
from pusl.serve.connections import Room, connection_room, protocol_options
from pusl.serve.gateway import host_names, set_up_logs
from pusl.serve.serve_config import ServeConfig, check_config, read_api_key
from pusl_eval.files import InputError

log = logging.getLogger("pusl.serve.app")
LOOPBACK = ("127.0.0.1", "localhost", "::1")


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
    most, backlog = connection_room(config.max_connections, config.workers)
    reserve = max(4, most // 16)  # connections for health checks while all others are busy
    app = create_app(
        config, api_key, host_names(config) if api_key is None else None, min(config.max_open, most - reserve)
    )
    room = Room(most, config.idle_timeout, report=app.state.service.telemetry.connection_closed)
    server = Server(
        uvicorn.Config(
            app, log_config=None, access_log=False, server_header=False, lifespan="on", backlog=backlog,
            timeout_graceful_shutdown=int(config.timeout) + 5, **protocol_options(room),
        )
    )  # fmt: skip
    app.state.service.telemetry.connections.set_function(lambda: len(server.server_state.connections))
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
