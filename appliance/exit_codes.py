"""What the program's exit codes mean. They follow sysexits.h where it has a word for it."""

from __future__ import annotations

from typing import Final

OK: Final = 0
FAILED: Final = 1  # a command was understood, tried and did not succeed
USAGE: Final = 2  # arguments that are not understood
UNAVAILABLE: Final = 69  # no running headrace to talk to (EX_UNAVAILABLE)
INTERNAL: Final = 70  # a fault of ours (EX_SOFTWARE)
CANNOT_CREATE: Final = 73  # an address is in use, a directory cannot be written (EX_CANTCREAT)
CANNOT_BOOT: Final = 78  # the configuration or a model can never work: starting again does not help (EX_CONFIG)
FORCED: Final = 130  # asked to stop twice: ended without draining
