"""Serves a trained model over HTTP: an API for programs and a page for people.

example:
    pusl serve --model models/pusl --port 8000
    curl -s http://127.0.0.1:8000/v1/keyphrases -H 'Content-Type: application/json' \\
         -d '{"texts": ["Waterproof hiking boots for wide feet"], "k": 5}'

The page is at /, the API description at /docs and /openapi.json, health checks at /healthz and /readyz,
Prometheus metrics at /metrics. By default only this machine can connect; with another --host, set
--api-key-env too. SIGTERM or Ctrl-C stops the service after it has answered every accepted request.
"""

from __future__ import annotations

import argparse
import sys

from pusl_eval.errors import needs_extra


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `pusl serve`."""
    from pusl.config import add_flags
    from pusl.serve.serve_config import ServeConfig

    parser.add_argument("--config", metavar="FILE", help="YAML file with any of the settings below")
    add_flags(parser, ServeConfig)


def run(args: argparse.Namespace) -> int:
    """Runs the service until it is stopped."""
    from pusl.config import build
    from pusl.serve.serve_config import ServeConfig, check_config

    config = check_config(build(ServeConfig, args, args.config))
    try:
        from pusl.serve.batching import WorkerLost
        from pusl.serve.server import serve
        from pusl.serve.worker import WorkerError
    except ImportError as error:
        raise needs_extra("pusl serve", str(error.name), "serve") from None
    try:
        serve(config)
    except (WorkerError, WorkerLost) as error:
        print(f"pusl: the model cannot be served: {error}", file=sys.stderr)
        return 1
    return 0
