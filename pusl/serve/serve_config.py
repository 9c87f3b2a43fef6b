"""YAML and flags -> the settings of `pusl serve`, checked before anything heavy is imported."""

from __future__ import annotations

import dataclasses
import os

from pusl.config import DEVICE, PRECISION, PRECISIONS, THREADS, option
from pusl.devices import resolve_device, resolve_precision
from pusl.hub import model_folder
from pusl_eval.files import InputError, check_input


@dataclasses.dataclass
class ServeConfig:
    """Settings of `pusl serve`."""

    model: str = option("", "folder of a trained model, or user/model[@revision] on the Hub")
    host: str = option("127.0.0.1", "address to listen on; any but a loopback address lets other machines connect")
    port: int = option(8000, "port to listen on; 0 picks a free one and prints it", minimum=0)
    universe: str | None = option(None, "file of real queries or labels, for the vocabularies `prefer` and `closed`")
    device: str = option("auto", DEVICE)
    precision: str | None = option(None, PRECISION, choices=PRECISIONS)
    workers: int = option(1, "model processes", minimum=1)
    threads: int | None = option(None, THREADS + " (default: cores / workers)", minimum=1)
    max_batch: int = option(32, "texts per batch", minimum=1)
    max_wait_ms: float = option(5.0, "milliseconds after which a batch starts even if it is not full", minimum=0)
    max_queue: int = option(512, "texts that may wait; above that the answer is 429", minimum=1)
    max_k: int = option(50, "largest k a request may ask for", minimum=1)
    max_texts: int = option(256, "texts per request", minimum=1)
    max_chars: int = option(20_000, "characters per text", minimum=1)
    max_body_mib: float = option(4.0, "largest request body, in MiB", minimum=0.001)
    max_work: int = option(
        20_000, "most work of one request: texts times beams, and with the strategy `sequence` also times k", minimum=1
    )
    max_seconds: float = option(
        1.2,
        "processor seconds that one text may take; never less than three times what a long text takes by default",
        minimum=0.05,
    )
    max_open: int = option(2048, "open requests; above that the answer is 503", minimum=1)
    max_connections: int = option(2048, "open connections; above that the longest idle one is closed", minimum=16)
    idle_timeout: float = option(30.0, "seconds until an idle connection is closed", minimum=1)
    timeout: float = option(30.0, "seconds until a request is answered with 504", minimum=0.001)
    api_key_env: str | None = option(None, "environment variable that holds the API key clients must send")
    allowed_hosts: str | None = option(
        None, "host names that clients may use if there is no key, separated by commas; * allows any (default:"
        " localhost, the name in --host and every IP address)",
    )  # fmt: skip
    log_level: str = option("info", "lowest level that is logged", choices=("debug", "info", "warning", "error"))


def read_api_key(variable: str | None) -> str | None:
    """The key from the environment variable the user named."""
    if variable is None:
        return None
    key = os.environ.get(variable, "")
    if not key.strip():
        raise InputError(f"--api-key-env {variable}: this environment variable is unset or empty")
    return key.strip()


def check_config(config: ServeConfig) -> ServeConfig:
    """The settings, or an InputError that names the first wrong one. Runs before anything starts."""
    if config.max_texts > config.max_queue:
        raise InputError(
            f"--max-texts {config.max_texts} is above --max-queue {config.max_queue}; such a request never fits"
        )
    if not config.model:
        raise InputError("--model DIR is missing: the folder of a trained model")
    folder = model_folder(config.model)  # a model of the Hub is loaded here, once for all processes
    if not (folder / "pusl.json").is_file():
        raise InputError(f"--model {config.model}: not a PUSL model folder (it has no pusl.json)")
    if config.port > 65535:
        raise InputError(f"--port {config.port}: expected a port from 0 to 65535")
    if config.universe is not None:
        check_input(config.universe)
    resolve_precision(config.precision, resolve_device(config.device))
    return dataclasses.replace(config, model=str(folder))
