"""How glibc's allocator is set: for large bodies that pass, and for many connections that each hold one big buffer.

A body passes in pieces of up to 127 KiB, of which some wait; when they are freed they are mostly the heap's end, which
glibc gives back to the kernel from 128 KiB on, and takes anew, page by page, for the next body: 133 page faults for a
megabyte that goes in and out. So more of the end is kept, for the whole process no more than KEPT_BYTES.

uvloop gives a TLS connection 256 KiB to read into. A page of them costs nothing until it is written to; but glibc, once
the first of these buffers is freed, takes the next ones from its heap, where each holds fast what smaller things wrote
before. Measured with 1,000 idle connections: 130 KiB each, and 28 KiB with the buffers in mappings of their own.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # mallopt(3)
_BYTES = 131072  # what both begin with in glibc, and without TLS follow what is freed
KEPT_BYTES = 4 << 20


@cache
def keep_free_end() -> None:
    """Keep up to KEPT_BYTES of the heap's free end. Other C libraries do what they do."""
    mallopt = _mallopt()
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
        mallopt(_M_MMAP_THRESHOLD, KEPT_BYTES // 4)  # which follows nothing any more once the other was set


@cache
def keep_big_buffers_apart() -> None:
    """Have every allocation of 128 KiB or more mapped on its own from now on, and the heap's free end given back. Other
    C libraries do what they do."""
    mallopt = _mallopt()
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _BYTES)
        mallopt(_M_TRIM_THRESHOLD, _BYTES)


def _mallopt() -> Any | None:
    try:
        return ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return None
