"""The program's own log, on stderr: one record per line, JSON for machines and plain lines on a terminal.

Owns the shape of a record for the supervisor and its children alike. Access logs are the proxy's. No record spans
lines or carries control characters, whatever a message quotes.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from datetime import UTC, datetime
from typing import TextIO

LOGGER = logging.getLogger("headrace")
_OURS = (LOGGER.name, "engine", "proxy")  # modules of the packages log under their own names

_PRIORITIES = {"DEBUG": 7, "INFO": 6, "WARNING": 4, "ERROR": 3, "CRITICAL": 2}
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_MAX_CHARACTERS = 8192


def configure(process: str, level: str, stream: TextIO | None = None) -> None:
    """Log to ``stream`` (None: stderr) as ``process`` ("supervisor", "proxy-1"), from ``level`` ("info") upwards."""
    stream = stream or sys.stderr
    handler = logging.StreamHandler(stream)
    lines = HumanLines(process) if stream.isatty() else JsonLines(process, journal=_is_journal(stream))
    handler.setFormatter(lines)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    set_level(level)


def set_level(level: str) -> None:
    """Log from ``level`` upwards; of other libraries warnings at least."""
    for name in _OURS:
        logging.getLogger(name).setLevel(level.upper())
    logging.getLogger().setLevel(max(logging.WARNING, LOGGER.level))


class JsonLines(logging.Formatter):
    """``{"time", "level", "process", "pid", "message"}`` and, after a fault, ``exception``."""

    def __init__(self, process: str, *, journal: bool = False) -> None:
        super().__init__()
        self._process = process
        self._journal = journal

    def format(self, record: logging.LogRecord) -> str:
        """One line of JSON, in ASCII; for the journal it begins with the priority (sd-daemon(3))."""
        fields = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "process": self._process,
            "pid": os.getpid(),
            "message": record.getMessage()[:_MAX_CHARACTERS],
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return f"<{_PRIORITIES.get(record.levelname, 6)}>" * self._journal + json.dumps(fields)


class HumanLines(logging.Formatter):
    """``15:04:05 warning proxy-1: message``; the supervisor's own info is the message alone."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """One line, and the stacks below it after a fault."""
        clock = datetime.fromtimestamp(record.created).astimezone().strftime("%H:%M:%S")
        level = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        process = "" if self._process == "supervisor" else f"{self._process}: "
        message = _CONTROLS.sub(lambda found: repr(found[0])[1:-1], record.getMessage()[:_MAX_CHARACTERS])
        stacks = f"\n{self.formatException(record.exc_info)}" if record.exc_info else ""
        return f"{clock} {process}{level}{message}{stacks}"


def _is_journal(stream: TextIO) -> bool:
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"
