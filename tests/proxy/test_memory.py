"""What glibc's allocator does once it is set. Each in a process of its own, whose allocator nobody has set before."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="set for glibc only")

#: A megabyte that comes in pieces which wait, again and again: the page faults of one, once the heap has grown.
PASSING = """
import resource
from proxy import memory
{setting}
def passes():
    waiting = [bytes(65536) for _ in range(16)]
for _ in range(10):
    passes()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    passes()
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // 10)
"""


def num_faults(setting: str) -> int:
    command = [sys.executable, "-c", PASSING.format(setting=setting)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def test_bodies_that_pass_find_the_memory_of_those_before_them() -> None:
    assert num_faults("memory.keep_free_end()") < 16 < num_faults("memory.keep_big_buffers_apart()")


def test_for_tls_the_free_end_is_given_back_all_the_same() -> None:
    assert num_faults("memory.keep_free_end(); memory.keep_big_buffers_apart()") > 16
