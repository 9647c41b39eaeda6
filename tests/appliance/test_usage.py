"""`headrace keys usage`: tables, CSV and JSON of what was used, and what is said where there is nothing."""

from __future__ import annotations

import csv
import io
import json
import time
from contextlib import closing
from pathlib import Path

import pytest

from appliance import exit_codes
from appliance.cli import run
from proxy.usage_report import SUMS, report
from proxy.usage_store import SLOT_S, Place, StoreError, Sums, UsageStore
from tests.appliance.config_files import LISTENER

Capture = pytest.CaptureFixture[str]
NOW_SLOT = int(time.time() // SLOT_S) * SLOT_S
DAY_S = 86400


def row(ago_s: int, key: str, tenant: str, team: str, model: str, n: int) -> tuple[Place, Sums]:
    slot = (NOW_SLOT - ago_s) // SLOT_S * SLOT_S
    return Place(slot, key, tenant, team, model, "up", "chat", 200), Sums(
        n, 100 * n, 20 * n, 10 * n, n // 2, slot + 1.0
    )


@pytest.fixture
def config(tmp_path: Path) -> str:
    with closing(UsageStore(str(tmp_path / "usage.db"))) as store:
        for place, sums in (
            row(0, "alice", "acme", "search", "small", 2),
            row(0, "alice", "acme", "search", "large", 1),
            row(2 * DAY_S, "bob", "acme", "mail", "small", 5),
            row(2 * DAY_S, "", "", "", "small\x1b[2J", 1),
            row(40 * DAY_S, "alice", "acme", "search", "small", 100),
        ):
            store.add({place: sums})
    file = tmp_path / "headrace.yaml"
    file.write_text(LISTENER + f"usage: {{path: {tmp_path}/usage.db}}\n")
    return str(file)


def asked(config: str, capsys: Capture, *arguments: str) -> str:
    assert run(["keys", "usage", "-c", config, *arguments]) == exit_codes.OK
    return capsys.readouterr().out


def test_json_tells_who_has_used_most_first(config: str, capsys: Capture) -> None:
    rows = json.loads(asked(config, capsys, "--json"))
    assert [(each["key"], each["requests"], each["total_tokens"]) for each in rows] == [
        ("bob", 5, 600),
        ("alice", 3, 360),
        ("", 1, 120),
    ]
    assert set(rows[0]) == {"key", *SUMS}
    rows = json.loads(asked(config, capsys, "--json", "--by", "team", "--by", "model", "--since", "1d"))
    assert [(each["team"], each["model"], each["prompt_tokens"]) for each in rows] == [
        ("acme/search", "small", 200),
        ("acme/search", "large", 100),
    ]
    rows = json.loads(asked(config, capsys, "--json", "--by", "tenant", "--since", "365d", "--until", "35d"))
    assert [(each["tenant"], each["requests"]) for each in rows] == [("acme", 100)]


def test_times_come_in_their_order(config: str, capsys: Capture) -> None:
    rows = json.loads(asked(config, capsys, "--json", "--by", "day", "--by", "tenant", "--since", "365d"))
    assert [each["requests"] for each in rows] == [100, 5, 1, 3]
    assert json.loads(asked(config, capsys, "--json", "--since", "2001-01-31", "--until", "2001-02-01T12:00")) == []


def test_csv_is_read_back(config: str, capsys: Capture) -> None:
    rows = list(csv.DictReader(io.StringIO(asked(config, capsys, "--csv", "--by", "key"))))
    assert [(each["key"], each["completion_tokens"], each["estimated"]) for each in rows] == [
        ("bob", "100", "2"),
        ("alice", "60", "1"),
        ("", "20", "0"),
    ]


def test_the_table_shows_no_control_characters(config: str, capsys: Capture) -> None:
    shown = asked(config, capsys, "--by", "model")
    assert shown.split("\n")[0].split() == ["model", "requests", "prompt", "completion", "cached", "total", "estimated"]
    assert "\x1b" not in shown
    assert "small\\x1b[2J" in shown
    assert asked(config, capsys, "--since", "1d", "--by", "tenant").split("\n")[1].split() == [
        "acme", "3", "300", "60", "30", "360", "1",
    ]  # fmt: skip


def test_a_table_that_no_terminal_shows_breaks_no_word(config: str, capsys: Capture) -> None:
    long = "a-model-whose-name-has-many-words/" * 5
    with closing(UsageStore(str(Path(config).parent / "usage.db"))) as store:
        store.add(dict([row(0, "alice", "acme", "search", long, 1)]))
    by = [part for name in ("key", "team", "model", "route", "upstream") for part in ("--by", name)]
    shown = asked(config, capsys, *by).splitlines()
    assert len([line for line in shown if f"  {long}  " in line]) == 1
    assert len({len(line) for line in shown}) == 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (LISTENER, "keeps no record of usage; say `usage: {path: FILE}` there"),
        (LISTENER + "usage: {path: /nowhere/usage.db}\n", "there is no record of usage at /nowhere/usage.db yet"),
        ("[", "headrace.yaml"),
    ],
)
def test_where_there_is_nothing_it_is_said(tmp_path: Path, capsys: Capture, text: str, says: str) -> None:
    file = tmp_path / "headrace.yaml"
    file.write_text(text)
    assert run(["keys", "usage", "-c", str(file)]) == exit_codes.FAILED
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["--by", "colour"], ["--since", "yesterday"], ["--until", "5"], ["--csv", "--json"]]
)
def test_what_is_not_understood_is_said(config: str, capsys: Capture, arguments: list[str]) -> None:
    assert run(["keys", "usage", "-c", config, *arguments]) == exit_codes.USAGE
    assert arguments[0] in capsys.readouterr().err


def test_a_file_that_is_no_record_is_told_and_stays(tmp_path: Path) -> None:
    file = tmp_path / "usage.db"
    file.write_bytes(b"something that somebody needs " * 100)
    with pytest.raises(StoreError, match="cannot be read"):
        report(file, ["key"], 0.0, 1.0)
    assert file.read_bytes().startswith(b"something")
