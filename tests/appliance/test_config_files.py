"""Include: several files as one configuration."""

from __future__ import annotations

import pytest

from appliance.config.files import why_unreadable
from tests.appliance.config_files import LISTENER, ConfigFiles

MAIN = "include: [conf.d/*.yaml]\n" + LISTENER


def test_tables_and_lists_are_joined_in_the_order_of_names(place: ConfigFiles) -> None:
    place.file("conf.d/20.yaml", "upstreams: {b: {servers: ['http://b:1']}}\nroutes: [{match: {path: /b}, to: b}]\n")
    place.file(
        "conf.d/10.yaml",
        "upstreams: {a: {servers: ['http://a:1']}}\nroutes: [{match: {path: /a}, to: a}]\n"
        "listeners: [{address: '127.0.0.1:8081'}]\nlog: {level: debug}\n",
    )
    loaded = place.load(MAIN + "log: {access: 'off'}\nroutes: [{match: {path: /m}, to: a}]\n")
    assert [route.match.path for route in loaded.proxy.routes] == ["/m", "/a", "/b"]
    assert [listener.address for listener in loaded.proxy.listeners] == ["127.0.0.1:8080", "127.0.0.1:8081"]
    assert set(loaded.proxy.upstreams) == {"a", "b"}
    assert (loaded.effective.log.level, loaded.access_log) == ("debug", "off")
    assert [path.name for path in loaded.sources] == ["headrace.yaml", "10.yaml", "20.yaml"]


def test_a_key_set_twice_names_both_places(place: ConfigFiles) -> None:
    place.file("conf.d/a.yaml", "drain: 5s\n\nupstreams:\n  app: {servers: ['http://a:1']}\n")
    assert place.problems(MAIN + "drain: 10s\nupstreams: {app: {servers: ['http://b:1']}}\n") == [
        "conf.d/a.yaml:1:1: drain: is set twice; it is set at headrace.yaml:3:1 too; keep one of them",
        "conf.d/a.yaml:4:3: upstreams.app: is set twice; it is set at headrace.yaml:4:13 too; keep one of them",
    ]


def test_problems_name_the_file_and_line_of_a_joined_list(place: ConfigFiles) -> None:
    place.file("conf.d/a.yaml", "routes:\n  - to: app\n  - match: {path: nowhere}\n    to: app\n")
    text = MAIN + "upstreams: {app: {servers: ['http://a:1']}}\nroutes: [{match: {path: /a}, to: app}]\n"
    [problem] = place.problems(text)
    assert problem.startswith("conf.d/a.yaml:3:19: routes[2].match.path: 'nowhere' is not a path")


def test_every_broken_file_is_told_at_once(place: ConfigFiles) -> None:
    place.file("conf.d/a.yaml", "a: 01\n")
    place.file("conf.d/b.yaml", "")
    place.file("conf.d/c.yaml", "include: [d.yaml]\n")
    assert [problem.partition(": ")[0] for problem in place.problems(MAIN)] == [
        "conf.d/a.yaml:1:4",
        "conf.d/b.yaml",
        "conf.d/c.yaml:1:1",
    ]


def test_a_pattern_may_match_nothing_but_a_name_must_exist(place: ConfigFiles) -> None:
    assert place.problems(MAIN) == []
    assert place.problems("include: [more.yaml]\n" + LISTENER) == [
        "headrace.yaml:1:11: include[0]: 'more.yaml': there is no such file"
    ]


def test_a_file_that_two_patterns_match_counts_once(place: ConfigFiles) -> None:
    place.file("conf.d/a.yaml", "limits: {one: {requests: 1/s}}\n")
    loaded = place.load("include: [conf.d/*.yaml, conf.d/a.yaml, '*.yaml']\n" + LISTENER)
    assert [path.name for path in loaded.sources] == ["headrace.yaml", "a.yaml"]


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (PermissionError(13, "Permission denied"), "permission denied; give the user that runs headrace read access"),
        (FileNotFoundError(2, "No such file or directory"), "there is no such file"),
        (IsADirectoryError(21, "Is a directory"), "is a directory, expected a file"),
        (OSError(5, "Input/output error"), "cannot be read: Input/output error"),
    ],
)
def test_a_file_that_cannot_be_read_says_why(error: OSError, says: str) -> None:
    assert says in why_unreadable(error)


def test_a_directory_is_no_configuration(place: ConfigFiles) -> None:
    (place.root / "conf.d/a.yaml").mkdir(parents=True)
    assert place.problems(MAIN) == ["conf.d/a.yaml: is a directory, expected a file"]
