"""The log: one record is one line, whatever it quotes."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from appliance import log

NASTY = 'GET /%0a1.2.3.4 - "x"\n\x1b[2J\x00\x85\u2028\udcff"'


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in (None, "headrace", "engine", "proxy")]
    handlers, levels = loggers[0].handlers[:], [logger.level for logger in loggers]
    yield
    loggers[0].handlers[:] = handlers
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


def test_K01_a_record_is_one_line_of_json() -> None:
    stream = io.StringIO()
    log.configure("proxy-1", "info", stream)
    log.LOGGER.warning("refused %s", NASTY)
    [line] = stream.getvalue().splitlines()
    assert line.isascii()
    record = json.loads(line)
    assert record["message"] == f"refused {NASTY}"
    assert (record["level"], record["process"]) == ("warning", "proxy-1")


def test_K01_a_terminal_gets_one_line_without_control_characters() -> None:
    stream = Terminal()
    log.configure("proxy-1", "info", stream)
    log.LOGGER.warning("refused %s", NASTY.replace("\udcff", ""))
    [line] = stream.getvalue().splitlines()
    assert line.isprintable()
    assert r"\x1b[2J\x00\x85\u2028" in line
    assert "proxy-1: warning: refused" in line


def test_the_supervisors_own_news_are_plain() -> None:
    stream = Terminal()
    log.configure("supervisor", "info", stream)
    log.LOGGER.info("ready on https://127.0.0.1:8443")
    assert stream.getvalue().partition(" ")[2] == "ready on https://127.0.0.1:8443\n"


def test_K01_a_message_is_cut() -> None:
    stream = io.StringIO()
    log.configure("supervisor", "info", stream)
    log.LOGGER.info("x" * 100_000)
    assert len(stream.getvalue()) < 10_000


def test_a_fault_carries_its_stacks() -> None:
    for stream in (io.StringIO(), Terminal()):
        log.configure("supervisor", "info", stream)
        try:
            raise ValueError("why")
        except ValueError:
            log.LOGGER.exception("ended")
        assert "ValueError: why" in stream.getvalue()


def test_levels_and_other_libraries() -> None:
    stream = io.StringIO()
    log.configure("supervisor", "info", stream)
    log.LOGGER.debug("too much")
    logging.getLogger("aiohttp").info("too much")
    logging.getLogger("aiohttp").warning("heard")
    logging.getLogger("engine.fleet").info("heard")
    log.set_level("debug")
    log.LOGGER.debug("heard")
    assert [json.loads(line)["message"] for line in stream.getvalue().splitlines()] == ["heard"] * 3


def test_the_journal_is_told_the_priority() -> None:
    record = logging.LogRecord("headrace", logging.ERROR, "", 0, "bad", None, None)
    assert log.JsonLines("supervisor", journal=True).format(record).startswith('<3>{"time"')
