"""How glibc's allocator is set for many connections that each hold one big buffer, of which they use little.

uvloop gives a TLS connection 256 KiB to read into. A page of them costs nothing until it is written to; but glibc, once
the first of these buffers is freed, takes the next ones from its heap, where each holds fast what smaller things wrote
before. Measured with 1,000 idle connections: 130 KiB each, and 28 KiB with the buffers in mappings of their own.
"""

from __future__ import annotations

import ctypes
from functools import cache

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # mallopt(3)
_BYTES = 131072  # what both begin with in glibc, and now stay at


@cache
def keep_big_buffers_apart() -> None:
    """Have every allocation of 128 KiB or more mapped on its own from now on, and the heap's free end given back. Other
    C libraries do what they do."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    mallopt(_M_MMAP_THRESHOLD, _BYTES)
    mallopt(_M_TRIM_THRESHOLD, _BYTES)
