"""Rise and fall, and what a good answer to a check is."""

from __future__ import annotations

import pytest

from proxy.config import Health as HealthConfig
from proxy.config import StatusRange
from proxy.upstream.health import Health, verdict
from tests.proxy.make import proxy_config


def told(health: Health, checks: str) -> str:
    """Feed good (+) and bad (-) checks; the standing after each: U or D."""
    standing = ""
    for check in checks:
        before = health.up
        assert health.told("" if check == "+" else "bad") is (health.up is not before)
        standing += "U" if health.up else "D"
    return standing


@pytest.mark.parametrize(
    ("checks", "standing"),
    [
        ("+---", "UUUD"),
        ("+--+--+---", "UUUUUUUUUD"),
        ("+---++", "UUUDDU"),
        ("+---+-+-++", "UUUDDDDDDU"),
        ("---", "DDD"),  # the first check counts whole
        ("-++---", "DDUUUD"),
        ("++++", "UUUU"),
    ],
)
def test_rise_and_fall(checks: str, standing: str) -> None:
    assert told(Health(HealthConfig(fall=3, rise=2)), checks) == standing


def test_one_that_was_down_before_a_reload_comes_up_with_its_first_good_check() -> None:
    health = Health(HealthConfig(), up=False)
    assert not health.told("bad")
    assert not Health(HealthConfig(), up=False).told("still bad")
    assert Health(HealthConfig(), up=False).told("")


def test_the_reason_is_that_of_the_last_bad_check() -> None:
    health = Health(HealthConfig())
    health.told("it answered 500")
    assert health.reason == "it answered 500"
    health.told("")
    assert health.reason == ""


@pytest.mark.parametrize(
    ("status", "body", "text", "reason"),
    [
        (200, b"", None, ""),
        (399, b"", None, ""),
        (400, b"", None, "it answered 400"),
        (503, b"ok", "ok", "it answered 503"),
        (200, b"status: ok", "ok", ""),
        (200, b"no", "ok", "its answer does not contain the text that health.body asks for"),
        (200, "größe".encode(), "größe", ""),
    ],
)
def test_a_good_answer(status: int, body: bytes, text: str | None, reason: str) -> None:
    assert verdict(status, body, [StatusRange(200, 399)], text) == reason


@pytest.mark.parametrize(
    ("spelt", "meant"),
    [([200], [(200, 200)]), (["200-299", 304, "401"], [(200, 299), (304, 304), (401, 401)])],
)
def test_statuses_are_numbers_and_ranges(spelt: list[object], meant: list[tuple[int, int]]) -> None:
    table = {"servers": ["http://a:1"], "health": {"path": "/healthz", "status": spelt}}
    config = proxy_config(upstreams={"u": table}).upstreams["u"].health
    assert list(config.status) == meant
    assert HealthConfig.model_validate_json(config.model_dump_json()) == config


@pytest.mark.parametrize("spelt", ["2xx", "99", "200-", "300-200", 600, True, None, 200.5])
def test_what_is_no_status_is_refused(spelt: object) -> None:
    with pytest.raises(ValueError, match="not a status"):
        proxy_config(upstreams={"u": {"servers": ["http://a:1"], "health": {"status": [spelt]}}})


@pytest.mark.parametrize("path", ["healthz", "/a b", "/a\r\nX: y", "", "/é"])
def test_a_path_that_would_break_the_request_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="not a path"):
        proxy_config(upstreams={"u": {"servers": ["http://a:1"], "health": {"path": path}}})
