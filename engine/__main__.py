"""``python -m engine --socket PATH --model NAME=DIR [...]``: the engine alone, without the appliance.

Ctrl-C or SIGTERM drains it. Exit codes: 0 drained, 1 it could not start, 2 bad arguments, 3 it can never start like
this (a corrupt model, a missing provider).
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys

import uvloop

from engine.settings import EngineSettings, ModelSettings
from engine.worker import EngineError, EngineWorker

_DRAIN_S = 30.0


def main() -> int:
    """Run until a signal; the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    settings = parse_arguments(sys.argv[1:])
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(settings))
    except EngineError as error:
        print(f"engine: {error}", file=sys.stderr)
        return 3 if error.permanent else 1
    return 0


def parse_arguments(arguments: list[str]) -> EngineSettings:
    """The settings that the arguments say. Exits with code 2 on bad ones."""
    parser = argparse.ArgumentParser(prog="python -m engine", description="Serve models on a unix socket.")
    parser.add_argument("--socket", required=True, metavar="PATH", help="where to listen")
    parser.add_argument("--model", required=True, action="append", metavar="NAME=DIR", help="a model folder; repeat")
    parser.add_argument("--threads", type=int, default=0, help="of one run; 0: one per usable core")
    parser.add_argument("--slots", type=int, default=16, help="chats that run at once")
    parser.add_argument("--context", type=int, help="tokens per chat; default: the model's own")
    parser.add_argument("--max-queue", type=int, default=128, help="requests that may wait")
    parser.add_argument("--max-stall", type=float, default=0.1, metavar="SECONDS", help="added to a decode step")
    parser.add_argument("--no-speculation", action="store_true", help="read no likely tokens ahead")
    chosen = parser.parse_args(arguments)
    options = {
        "slots": chosen.slots,
        "context": chosen.context,
        "max_queue": chosen.max_queue,
        "max_stall_s": chosen.max_stall,
        "speculation": not chosen.no_speculation,
    }
    models = []
    for text in chosen.model:
        name, equals, path = text.partition("=")
        if not (name and equals and path):
            parser.error(f"--model {text}: write NAME=DIR")
        models.append((name, path))
    try:
        return EngineSettings(
            socket_path=chosen.socket,
            threads=chosen.threads,
            control="clients",  # there is nobody else to give orders; who reaches the socket is the file's permissions
            models=tuple(ModelSettings(name=name, path=path, **options) for name, path in models),
        )
    except ValueError as error:
        parser.error(str(error))


async def _serve(settings: EngineSettings) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    worker = EngineWorker(settings)
    await worker.start(lambda what: logging.getLogger("engine").info("%s", what))
    await stop.wait()
    await worker.drain(_DRAIN_S)


if __name__ == "__main__":
    sys.exit(main())
