"""What an answer says of limits, in the fields that a client reads. Pure.

These are RateLimit and RateLimit-Policy (draft-ietf-httpapi-ratelimit-headers-11), X-RateLimit-* with a date, or
OpenAI's with durations.

What an origin says of its own limits is never loosened: its items stand beside ours in the two lists, ours under
another name where they would be taken for it, and of fields with room for one limit the one with the least left stays.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import ceil, inf
from typing import Final

from proxy.exchange import Head
from proxy.fields import go_duration
from proxy.named_limit import Standing, whole

_DIGITS: Final = re.compile(rb"\s*(\d{1,15})")
_RATELIMIT: Final = (b"ratelimit", b"ratelimit-policy")
_OF_LIMITS: Final = (b"ratelimit", b"x-ratelimit-")
_SHORTEST: Final = 9  # bytes of these
_DATED: Final = (b"x-ratelimit-limit", b"x-ratelimit-remaining", b"x-ratelimit-reset")


def tell_limits(head: Head, standing: Sequence[Standing], policies: bytes, wall_at: float) -> None:
    """Add the fields of these limits. policies: our items of RateLimit-Policy; wall_at: now, on the wall clock."""
    theirs = tells_of_limits(head)
    if policies:
        items = b", ".join([each.named.ietf_item(each.left, each.reset_s) for each in standing if each.named.ietf])
        tell_items(head, [each.named.shown for each in standing], policies, items, theirs)
    dated = [each for each in standing if each.named.dated]
    if dated and (not theirs or _ours_is_tighter(head, dated, _DATED)):
        tightest = _tightest(dated)
        head.headers += (
            (b"X-RateLimit-Limit", b"%d" % tightest.named.terms.burst),
            (b"X-RateLimit-Remaining", b"%d" % tightest.left),
            (b"X-RateLimit-Reset", b"%d" % ceil(wall_at + whole(_finite(tightest)))),
        )
    openai = [each for each in standing if each.named.openai]
    if openai:
        unit = openai[0].named.unit.encode()
        names = (b"x-ratelimit-limit-" + unit, b"x-ratelimit-remaining-" + unit, b"x-ratelimit-reset-" + unit)
        if not theirs or _ours_is_tighter(head, openai, names):
            tightest = _tightest(openai)
            head.headers += (
                (names[0], b"%d" % tightest.named.terms.burst),
                (names[1], b"%d" % tightest.left),
                (names[2], go_duration(_finite(tightest)).encode()),
            )


def tell_items(head: Head, names: Sequence[str], policies: bytes, items: bytes, theirs: bool) -> None:
    """Add our items of RateLimit-Policy and RateLimit. names: those of the items; theirs: whether there are others."""
    if theirs:
        taken = b", ".join([value for name, value in head.headers if name.lower() in _RATELIMIT])
        for shown in [name.encode() for name in names if b'"%b"' % name.encode() in taken]:
            items = items.replace(b'"%b"' % shown, b'"%b@edge"' % shown)
            policies = policies.replace(b'"%b"' % shown, b'"%b@edge"' % shown)
    head.headers += ((b"RateLimit-Policy", policies), (b"RateLimit", items))


def tells_of_limits(head: Head) -> bool:
    """Whether the answer tells of limits already."""
    for name, _ in head.headers:
        if len(name) >= _SHORTEST and name[0] in b"rRxX" and name.lower().startswith(_OF_LIMITS):
            return True
    return False


def _ours_is_tighter(head: Head, ours: list[Standing], names: Sequence[bytes]) -> bool:
    """Whether ours go out; then theirs are taken away. names: of limit, remaining and reset. No more is left of theirs
    than their limit, if that is all they say."""
    limit, remaining, _ = names
    theirs = head.get(remaining)
    left = _DIGITS.match((theirs if theirs is not None else head.get(limit)) or b"")
    if left is not None and int(left[1]) <= _tightest(ours).left:
        return False
    least = min(map(len, names))
    head.headers = [row for row in head.headers if len(row[0]) < least or row[0].lower() not in names]
    return True


def _tightest(standing: list[Standing]) -> Standing:
    """The limit with the least left, of two the one that takes longer: these fields have room for one."""
    return standing[0] if len(standing) == 1 else min(standing, key=lambda each: (each.left, -each.reset_s))


def _finite(standing: Standing) -> float:
    return standing.reset_s if standing.reset_s < inf else standing.named.window_s
