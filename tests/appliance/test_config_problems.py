"""What is wrong with a configuration, said so that an operator can mend it: places, keys, what was expected."""

from __future__ import annotations

import pytest

from appliance.config import ConfigurationError, load
from tests.appliance.config_files import LISTENER, ConfigFiles

APP = LISTENER + "upstreams: {app: {servers: ['http://a:1']}}\n"


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("wrkers: 2", "2:1: wrkers: unknown key; did you mean `workers`?"),
        ("log: {lvl: info}", "2:7: log.lvl: unknown key; did you mean `level`?"),
        ("models: {a: {path: m, slotz: 1}}", "2:23: models.a.slotz: unknown key; did you mean `slots`?"),
        ("routes: [{to: x, polices: {}}]", "2:18: routes[0].polices: unknown key; did you mean `policies`?"),
        (
            "routes: [{to: x, policies: {ratelimit: [a]}}]",
            "2:29: routes[0].policies.ratelimit: unknown key; did you mean `rate_limit`?",
        ),
        ("admin: {zzz: 1}", "2:9: admin.zzz: unknown key; known are address"),
        ("drain: 5", "2:8: drain: 5 is not understood; write a number with a unit (us, ms, s, m, h, d), like 30s"),
        (
            "drain: 5 parsecs",
            "2:8: drain: '5 parsecs' is not understood; write a number with a unit (us, ms, s, m, h, d), like 30s",
        ),
        ("workers: many", '2:10: workers: expected a whole number or `auto`, found "many"'),
        ("workers: 0", "2:10: workers: expected greater than or equal to 1 or `auto`, found 0"),
        ("workers: no", '2:10: workers: expected a whole number or `auto`, found "no"'),
        ("log: debug", '2:6: log: expected a table, found "debug"'),
        (
            "log: {access: no, level: loud}",
            '2:26: log.level: expected `debug`, `info`, `warning` or `error`, found "loud"',
        ),
        ("routes:", "2:8: routes: expected a list, found nothing"),
        ("routes: {to: app}", "2:9: routes: expected a list, found a table"),
        (
            "routes: [{}]",
            "2:10: routes[0]: expected exactly one of `to: UPSTREAM`, `redirect: {to: URL}` and `respond: {status: N}`",
        ),
        (
            "models: {chat: {}}",
            "2:16: models.chat.path: is missing; it is required where there is no `models.repository`",
        ),
        ("models: {thread: 3}", "2:18: models.thread: expected a table, found 3"),
        (
            "models: {chat: {path: m, max_stall: 0s}}",
            '2:37: models.chat.max_stall: expected greater than 0, found "0s"',
        ),
        (
            "usage: {path: /tmp/u.db, keep: 1d}",
            '2:32: usage.keep: expected greater than or equal to 32d, found "1d"',
        ),
        (
            "models: {memory: 0%}",
            '2:18: models.memory: expected greater than 0, found "0%"',
        ),
        (
            "routes: [{respond: {status: 200}, policies: {idempotency: {answer: 100MiB}}}]",
            '2:68: routes[0].policies.idempotency.answer: expected less than or equal to 4MiB, found "100MiB"',
        ),
        (
            "routes: [{respond: {status: 200}, policies: {idempotency: {store: {path: x.db}}}}]",
            '2:74: routes[0].policies.idempotency.store.path: expected text to match pattern `^/`, found "x.db"',
        ),
        (
            "routes: [{respond: {status: 200}, policies: {idempotency: {store: [1]}}}]",
            "2:67: routes[0].policies.idempotency.store: expected `memory` or a table, found a list",
        ),
        ("upstreams: {a: {servers: []}}", "2:26: upstreams.a.servers: is empty; expected at least one entry"),
        (
            "upstreams: {a: {servers: [x]}}",
            "2:27: upstreams.a.servers[0]: 'x' is not a server; write http://HOST:PORT, https://HOST or unix:/PATH, "
            "without a path",
        ),
        (
            "upstreams: {a: {servers: ['http://user:word@a']}}",
            "2:27: upstreams.a.servers[0]: a server's URL carries no user or password; give the key in "
            "`key: {secret: NAME}`",
        ),
        ("upstreams: {a: {servers: 'http://a'}}", '2:26: upstreams.a.servers: expected a list, found "http://a"'),
        (
            "limits: {a: {requests: often}}",
            "2:24: limits.a.requests: 'often' is not a rate; write a whole number per s, min, h or day, like 600/min",
        ),
        ("secrets: {a: {}}", "2:14: secrets.a: expected exactly one of `file: PATH` and `env: VARIABLE`"),
        (
            "admin: {address: 0.0.0.0:9180}",
            "2:18: admin.address: 0.0.0.0:9180 is reachable from outside; expected a loopback address",
        ),
        (
            "admin: {address: 127.0.0.1:8080}",
            "2:18: admin.address: 127.0.0.1:8080 is a listener's address, too; expected one of its own",
        ),
        (
            "routes: [{to: ap}]\nupstreams: {app: {servers: ['http://a']}}",
            "2:15: routes[0].to: there is no upstream named 'ap'; did you mean 'app'?",
        ),
        ("routes: [{to: engine}]", "2:15: routes[0].to: there is no engine: no models are configured"),
        ("include: conf.d", '2:10: include: expected a list, found "conf.d"'),
    ],
)
def test_one_problem_is_one_line(place: ConfigFiles, line: str, wrong: str) -> None:
    assert place.problems(f"{LISTENER}{line}\n") == [f"headrace.yaml:{wrong}"]


def test_a_name_is_checked_where_it_becomes_a_label(place: ConfigFiles) -> None:
    for table, entry in (
        ("upstreams", "{servers: ['http://a']}"),
        ("limits", "{requests: 1/s}"),
        ("models", "{path: m}"),
    ):
        [problem] = place.problems(f"{LISTENER}{table}: {{'a b': {entry}}}\n")
        assert "'a b' is not a name; write 1 to 100 letters, digits, and . _ : / - after the first" in problem


def test_all_problems_are_told_in_the_order_of_the_file(place: ConfigFiles) -> None:
    problems = place.problems("drain: 1\nworkers: x\nlog: {levl: info}\n")
    assert [problem.split(": ")[:2] for problem in problems] == [
        ["headrace.yaml:1:1", "listeners"],
        ["headrace.yaml:1:8", "drain"],
        ["headrace.yaml:2:10", "workers"],
        ["headrace.yaml:3:7", "log.levl"],
    ]


def test_what_tables_mean_together_is_told_at_once_too(place: ConfigFiles) -> None:
    problems = place.problems(
        "listeners: [{address: '0.0.0.0:80', tls: {certificates: [{cert: a, key: b}]}}, {address: '0.0.0.0:80'}]\n"
        "models: {chat: {path: models/chat}}\n"
        "secrets: {a: {env: HEADRACE_TEST_UNSET}}\n"
        "routes: [{to: engine}, {to: nowhere}]\n"
    )
    assert [problem.split(": ")[1] for problem in problems] == [
        "listeners[0].tls.certificates[0].cert",
        "listeners[0].tls.certificates[0].key",
        "listeners[1].address",
        "models.chat.path",
        "secrets.a",
        "routes[0]",
        "routes[1].match",
        "routes[1].to",
    ]


def test_no_message_shows_a_secret(place: ConfigFiles) -> None:
    text = "\n".join(
        place.problems(
            LISTENER + "secrets: {a: sk-abc, b: {file: [sk-abc]}, c: {env: {x: sk-abc}}}\n"
            "upstreams: {u: {servers: ['http://a'], key: sk-abc}}\n"
        )
    )
    text += "\n".join(place.problems(LISTENER + "upstreams: {u: {servers: ['http://me:sk-abc@a/path']}}\n"))
    assert "carries no user or password" in text
    assert text.count("secrets.") == 3
    assert "upstreams.u.key" in text
    assert "sk-abc" not in text


@pytest.mark.parametrize(
    "text",
    [
        "",
        LISTENER[: len(LISTENER) // 2],
        "listeners:\n\t- address: 127.0.0.1:80\n",
        LISTENER + LISTENER,
        LISTENER + "unknown: 1\n",
        APP + "routes: [{to: missing}]\n",
        "listeners: [{address: '127.0.0.1:08080x'}]\n",
        LISTENER + "workers: 08080\n",
        LISTENER + "upstreams: {app: {servers: ['https://a'], tls: {verify: no}}}\n",
    ],
    ids=["truncated to nothing", "half", "tab", "twice", "unknown key", "missing upstream", "port", "08080", "no"],
)
def test_J04_a_broken_file_is_refused_with_file_line_and_key(place: ConfigFiles, text: str) -> None:
    problems = place.problems(text)
    assert problems
    assert all(problem.startswith("headrace.yaml") for problem in problems)


def test_a_missing_file_is_one_problem(place: ConfigFiles) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(place.root / "none.yaml")
    assert str(caught.value) == f"{place.root}/none.yaml: there is no such file"
