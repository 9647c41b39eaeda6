"""Which attempt at its request this is, over all who repeat it, and how an answer asks to be asked again. Pure.

Each layer that repeats by itself multiplies the load on what fails below it. So the number of the attempt travels with
the request, in Envoy's field (1, or none, for the first one), and what others have tried before counts here as tried.
A peer that is no trusted proxy is not heard, nor is its field passed on; OpenAI's clients are, who count their
repetitions: both can only lower how often we try. An answer says, to a trusted proxy, how many attempts were made.
"""

from __future__ import annotations

import re
from typing import Final

from proxy.exchange import Exchange, Head
from proxy.upstream.retry_after import MAX_RETRY_AFTER_S, retry_after_s

ATTEMPT: Final = b"x-envoy-attempt-count"
_MAX: Final = 1000  # a larger number says nothing more
#: The longest time that a request is held back because an answer asks for it; more is for the client to wait.
MAX_WAIT_S: Final = 1.0
_MILLISECONDS: Final = re.compile(rb"[0-9]{1,12}(?:\.[0-9]{1,9})?")


def tried_before(x: Exchange) -> int:
    """Attempts that were made at this request before it came here."""
    proxies = _number(x.fields.get("X-Envoy-Attempt-Count")) - 1 if x.trusted else 0
    return max(0, proxies, _number(x.fields.get("X-Stainless-Retry-Count")))


def tried_behind(head: Head) -> int:
    """The number of the last attempt that was made behind an upstream, as its answer says; 0: it does not."""
    value = head.get(ATTEMPT)
    return 0 if value is None else _number(value.decode("latin-1"))


def attempt_field(x: Exchange) -> tuple[bytes, bytes]:
    """The field that says which attempt is under way, to be sent from the second one on."""
    return ATTEMPT, b"%d" % min(_MAX, tried_before(x) + x.attempts)


def tell_attempts(x: Exchange, head: Head) -> None:
    """Say in an answer to a trusted proxy how often it was tried; asked where it was more than once."""
    if x.trusted:
        number = max(tried_before(x) + x.attempts, tried_behind(head))
        head.headers = [field for field in head.headers if field[0].lower() != ATTEMPT]
        head.headers.append((ATTEMPT, b"%d" % min(_MAX, number)))


def asks_again(head: Head, wall_now: float) -> float | None:
    """Seconds after which an answer asks for its request again (``x-should-retry: true``); None: it does not, or only
    after more than MAX_WAIT_S."""
    should = head.get(b"x-should-retry")
    if should is None or should.strip().lower() != b"true":
        return None
    wait_s = wait_of(head, wall_now)
    return wait_s if wait_s <= MAX_WAIT_S else None


def wait_of(head: Head, wall_now: float) -> float:
    """Seconds after which an answer wants to be asked again: ``retry-after-ms``, which is exact, or Retry-After; 0.0:
    it does not say."""
    exact = head.get(b"retry-after-ms")
    if exact is not None and _MILLISECONDS.fullmatch(exact.strip()):
        return min(float(exact) / 1000, MAX_RETRY_AFTER_S)
    value = head.get(b"retry-after")
    return retry_after_s(value, wall_now) if value is not None else 0.0


def _number(text: str | None) -> int:
    """A count as a field says it; 0: it says none."""
    if text is None:
        return 0
    text = text.strip()
    return min(int(text), _MAX) if text.isdigit() and text.isascii() and len(text) < 10 else 0
