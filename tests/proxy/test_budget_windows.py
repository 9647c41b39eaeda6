"""Windows of calendars: month ends, leap days, changes of clocks, and that they cover all of time once."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.budget_windows import Period, window_at, zone_of

PERIODS: tuple[Period, ...] = ("hour", "day", "month")
ZONES = sorted(name for name in available_timezones() if "/" in name and not name.startswith(("posix", "right")))


def at(text: str, zone: str, fold: int = 0) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold).timestamp()


def spelt(wall: float, zone: str) -> str:
    return datetime.fromtimestamp(wall, ZoneInfo(zone)).isoformat()


@pytest.mark.parametrize(
    ("moment", "per", "zone", "start", "end"),
    [
        ("2026-01-31T23:59:59", "month", "UTC", "2026-01-01T00:00:00+00:00", "2026-02-01T00:00:00+00:00"),
        ("2028-02-29T12:00:00", "month", "UTC", "2028-02-01T00:00:00+00:00", "2028-03-01T00:00:00+00:00"),
        ("2026-12-31T23:30:00", "month", "Europe/Berlin", "2026-12-01T00:00:00+01:00", "2027-01-01T00:00:00+01:00"),
        ("2028-02-29T23:00:00", "day", "UTC", "2028-02-29T00:00:00+00:00", "2028-03-01T00:00:00+00:00"),
        ("2026-03-29T12:00:00", "day", "Europe/Berlin", "2026-03-29T00:00:00+01:00", "2026-03-30T00:00:00+02:00"),
        ("2026-10-25T12:00:00", "day", "Europe/Berlin", "2026-10-25T00:00:00+02:00", "2026-10-26T00:00:00+01:00"),
        ("2026-06-01T10:20:00", "hour", "Asia/Kolkata", "2026-06-01T10:00:00+05:30", "2026-06-01T11:00:00+05:30"),
        # A midnight that does not exist: the day begins when the clock shows 01:00.
        ("2018-11-04T12:00:00", "day", "America/Sao_Paulo", "2018-11-04T01:00:00-02:00", "2018-11-05T00:00:00-02:00"),
        # A day that does not exist.
        ("2011-12-29T12:00:00", "day", "Pacific/Apia", "2011-12-29T00:00:00-10:00", "2011-12-31T00:00:00+14:00"),
    ],
)
def test_a_window_begins_and_ends_where_the_calendar_says(
    moment: str, per: Period, zone: str, start: str, end: str
) -> None:
    window = window_at(at(moment, zone), per, ZoneInfo(zone))
    assert (spelt(window.start, zone), spelt(window.end, zone)) == (start, end)


def test_an_hour_that_the_clock_shows_twice_is_two_windows() -> None:
    zone = ZoneInfo("Europe/Berlin")
    first, second = (window_at(at("2026-10-25T02:30:00", "Europe/Berlin", fold=fold), "hour", zone) for fold in (0, 1))
    assert first.end == second.start
    assert second.end - first.start == 7200.0


def test_a_midnight_that_the_clock_shows_twice_begins_a_day_once() -> None:
    zone = ZoneInfo("America/St_Johns")  # 2006-10-29, at 00:01 back to 23:01
    midnight = at("2006-10-29T00:00:00", "America/St_Johns")
    again = at("2006-10-28T23:30:00", "America/St_Johns", fold=1)
    assert again > midnight
    assert window_at(midnight, "day", zone) == window_at(again, "day", zone)
    assert window_at(midnight - 1, "day", zone).end == midnight


@given(
    st.floats(min_value=0, max_value=4_000_000_000),  # to 2096
    st.sampled_from(PERIODS),
    st.sampled_from(["UTC", "Europe/Berlin", "America/St_Johns", "Australia/Lord_Howe", "Asia/Kathmandu", *ZONES]),
)
@settings(max_examples=300, deadline=None)
def test_windows_follow_each_other_without_a_gap(wall: float, per: Period, zone: str) -> None:
    info = zone_of(zone)
    window = window_at(wall, per, info)
    assert window.start <= wall < window.end
    assert window_at(window.start, per, info) == window
    assert window_at(window.end - 0.5, per, info) == window
    assert window_at(window.end, per, info).start == window.end


def test_a_zone_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="no time zone of this box"):
        zone_of("Europe/Atlantis")
    with pytest.raises(ValueError, match="no time zone of this box"):
        zone_of("../../etc/passwd")
