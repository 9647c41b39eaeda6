"""The first question: waits until an appliance is ready, asks its model, shows the answer as it streams.

Owns what ``install.sh try`` prints. It is a client like any other, with the standard library alone: it knows the
address, the CA and the API, and nothing of how the appliance works.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import ssl
import sys
import time
from collections.abc import Iterator
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

QUESTION = "What is the capital of France?"
READY_TIMEOUT_S = 120.0


def ask(url: str, ca: str, model: str, question: str) -> Iterator[str]:
    """Yields the answer's pieces as they arrive. Raises URLError, HTTPError; RuntimeError on an error in the stream."""
    trust = ssl.create_default_context(cafile=ca)
    with urlopen(_request(url, model, question), context=trust, timeout=60) as answer:  # noqa: S310 (https alone)
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                raise RuntimeError(event["error"]["message"])
            for choice in event["choices"]:
                yield choice["delta"].get("content") or ""


def _request(url: str, model: str, question: str) -> Request:
    body = json.dumps(_body(model, question)).encode()
    return Request(f"{url}/v1/chat/completions", body, {"Content-Type": "application/json"})  # noqa: S310 (https alone)


def _body(model: str, question: str) -> dict[str, object]:
    return {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "temperature": 0,
        "max_tokens": 100,
        "stream": True,
    }


def wait_until_ready(url: str, ca: str, server_pid: int, timeout_s: float = READY_TIMEOUT_S) -> bool:
    """True once ``/v1/models`` answers; False if the server's process ends or the time is over first.

    Raises HTTPError if it answers that this client may not ask.
    """
    deadline = time.monotonic() + timeout_s
    context = ssl.create_default_context(cafile=ca)
    while time.monotonic() < deadline and _runs(server_pid):
        try:
            with urlopen(f"{url}/v1/models", context=context, timeout=5):  # noqa: S310 (https alone)
                return True
        except HTTPError as refusal:
            if refusal.code < 500:
                raise
        except (URLError, ConnectionError, TimeoutError):
            pass  # not listening yet
        time.sleep(0.1)
    return False


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def curl_line(url: str, ca: str, model: str, question: str) -> str:
    """The question as a ``curl`` command that shows the stream as it comes."""
    body = json.dumps(_body(model, question))
    words = ["curl", "-N", "--cacert", ca, f"{url}/v1/chat/completions", "-H", "Content-Type: application/json", "-d"]
    return shlex.join([*words, body])


def python_line(url: str, ca: str, model: str, question: str) -> str:
    """The question as a ``python3 -c`` command, standard library alone, that prints the answer as it comes."""
    code = (
        "import json, ssl, urllib.request as u; "
        f'c = ssl.create_default_context(cafile="{ca}"); '
        f'r = u.Request("{url}/v1/chat/completions", json.dumps({_body(model, question)!r}).encode(), '
        '{"Content-Type": "application/json"}); '
        '[print(json.loads(e[6:])["choices"][0]["delta"].get("content") or "", end="", flush=True) '
        'for e in u.urlopen(r, context=c) if e.startswith(b"data: {")]; print()'
    )
    return shlex.join(["python3", "-c", code.replace("'", '"')])


def _short(path: str) -> str:
    """The path as one would type it here: relative where that goes downwards only."""
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative


def main() -> int:
    """Runs the demonstration; the exit status is 0 when an answer was shown."""
    parser = argparse.ArgumentParser(description="ask a Headrace its first question")
    parser.add_argument("--server-pid", type=int, required=True, help="give up when this process ends")
    parser.add_argument("--url", required=True, help="like https://127.0.0.1:8443")
    parser.add_argument("--ca", required=True, help="the certificate authority's file")
    parser.add_argument("--model", required=True)
    options = parser.parse_args()
    url, ca, model = options.url, _short(options.ca), options.model
    try:
        if not wait_until_ready(url, ca, options.server_pid):
            return 1
        print(f"\nready on {url}\n\n> {QUESTION}", flush=True)
        for piece in ask(url, ca, model, QUESTION):
            print(piece, end="", flush=True)
    except (OSError, RuntimeError) as problem:
        print(f"the first question was not answered: {problem}", file=sys.stderr)
        return 1
    print("\n\nAsk it yourself:\n")
    print(curl_line(url, ca, model, QUESTION), python_line(url, ca, model, QUESTION), sep="\n\n", end="\n\n")
    print("Ctrl-C ends it.", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
