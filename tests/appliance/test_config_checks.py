"""What the configuration names: certificates, keys, secrets, models; and what it exposes to whom."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat

from appliance.config.exposure import is_loopback
from appliance.keys import add_key, revoke_key
from engine.providers import Placement
from tests.appliance.config_files import LISTENER, ConfigFiles

TLS = "listeners: [{address: '127.0.0.1:443', tls: {certificates: [{cert: a.pem, key: a.key}]}}]\n"
CERTIFICATE = "listeners[0].tls.certificates[0]"


def test_materials_keep_their_names_and_are_read_from_beside_the_file(
    place: ConfigFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.certificate("a.pem", "a.key")
    (place.root / "elsewhere").mkdir()
    monkeypatch.chdir(place.root / "elsewhere")
    loaded = place.load(TLS)
    assert set(loaded.materials) == {"a.pem", "a.key"}
    assert loaded.materials["a.pem"].startswith(b"-----BEGIN CERTIFICATE-----")
    assert "BEGIN" not in repr(loaded)


def test_a_key_of_another_certificate_is_told(place: ConfigFiles) -> None:
    place.certificate("a.pem", "a.key")
    place.certificate("b.pem", "b.key")
    assert place.problems(TLS.replace("a.key", "b.key")) == [
        f"headrace.yaml:1:80: {CERTIFICATE}.key: does not belong to the certificate: their public keys differ"
    ]


def test_files_that_are_no_certificates_are_told(place: ConfigFiles) -> None:
    place.certificate("a.pem", "a.key")
    place.file("b.pem", "not a certificate")
    [problem] = place.problems(TLS.replace("a.pem", "b.pem"))
    assert f"{CERTIFICATE}.cert: holds no certificate" in problem
    [problem] = place.problems(TLS.replace("a.key", "b.pem"))
    assert f"{CERTIFICATE}.key: holds no private key" in problem
    key = ec.generate_private_key(ec.SECP256R1())
    locked = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
    place.file("b.pem", locked)
    [problem] = place.problems(TLS.replace("a.key", "b.pem"))
    assert f"{CERTIFICATE}.key: is encrypted" in problem
    [problem] = place.problems(LISTENER + "upstreams: {u: {servers: ['https://a'], tls: {ca: b.pem}}}\n")
    assert "upstreams.u.tls.ca: holds no certificate" in problem


def test_a_directory_and_an_endless_file_are_no_material(place: ConfigFiles) -> None:
    place.certificate("a.pem", "a.key")
    [problem] = place.problems(TLS.replace("a.pem", "."))
    assert "is a directory, expected a file" in problem
    [problem] = place.problems(TLS.replace("a.pem", "/dev/zero"))
    assert "/dev/zero: is longer than the limit of 16777216 bytes" in problem


def test_a_damaged_keys_file_is_told(place: ConfigFiles) -> None:
    place.file("keys.yaml", "keys: [{id: a, hash: nonsense}]\n")
    app = "upstreams: {app: {servers: ['http://a']}}\n"
    [problem] = place.problems(LISTENER + app + "routes: [{to: app, policies: {auth: {keys: keys.yaml}}}]\n")
    assert problem.startswith(
        "headrace.yaml:3:44: routes[0].policies.auth.keys: keys.yaml: keys[0].hash: expected sha256"
    )


def test_a_file_of_users_that_cannot_be_used_is_told(place: ConfigFiles) -> None:
    app = "upstreams: {app: {servers: ['http://a']}}\n"
    place.file("users", "# ours\nalice:{SHA}qUqP5cyxm6YcTAhz05Hph5gvu9M=\n")
    [problem] = place.problems(LISTENER + app + "routes: [{to: app, policies: {basic_auth: {users: users}}}]\n")
    assert problem.startswith(
        "headrace.yaml:3:51: routes[0].policies.basic_auth.users: users: line 2: {SHA} is a bare SHA-1"
    )
    assert "qUqP" not in problem


BUDGET = """
budgets: {daily: {tokens: 5, per: day}, team: {key: team, tokens: 5}}
routes: [{respond: {status: 200}, policies: {auth: {keys: keys.yaml}, tokens: {}}}]
"""


def test_budgets_need_a_record_of_usage_where_there_is_a_directory(place: ConfigFiles) -> None:
    place.file("keys.yaml", "keys: []\n")
    [problem] = place.problems(LISTENER + BUDGET)
    assert "budgets: without a record of usage a restart would forget what was used" in problem
    [problem] = place.problems(LISTENER + f"usage: {{path: {place.root}/nowhere/usage.db}}" + BUDGET)
    assert "usage.path: there is no directory nowhere; make it" in problem
    place.file("text", "no database " * 1000)
    [problem] = place.problems(LISTENER + f"usage: {{path: {place.root}/text}}" + BUDGET)
    assert "usage.path: text cannot be used: file is not a database" in problem
    [problem] = place.problems(LISTENER + "usage: {path: /proc/usage.db}" + BUDGET)
    assert "usage.path: no file can be made in /proc" in problem
    assert place.problems(LISTENER + f"usage: {{path: {place.root}/usage.db}}" + BUDGET) == []
    same = BUDGET + "limits: {daily: {requests: 1/s}}\n"
    [problem] = place.problems(LISTENER + f"usage: {{path: {place.root}/usage.db}}" + same)
    assert "budgets.daily: daily is also the name of a limit" in problem
    [problem] = place.problems(
        LISTENER + f"usage: {{path: {place.root}/usage.db}}" + BUDGET.replace(", tokens: {}", "")
    )
    assert "budgets: no route has the policy `tokens`" in problem


def test_the_file_of_kept_answers_can_be_used(place: ConfigFiles) -> None:
    place.file("text", "no database " * 1000)
    usage = f"usage: {{path: {place.root}/usage.db}}\n"
    route = "routes: [{respond: {status: 200}, policies: {idempotency: {store: {path: PATH}}}}]\n"
    answers = LISTENER + usage + route
    key = "routes[0].policies.idempotency.store.path: "
    for path, says in (
        (f"{place.root}/text", "text cannot be used: file is not a database"),
        ("/proc/a.db", "no file can be made in /proc"),
        (f"{place.root}/usage.db", "usage.db is also the record of usage; name another file"),
    ):
        [problem] = place.problems(answers.replace("PATH", path))
        assert key + says in problem
    assert place.problems(answers.replace("PATH", f"{place.root}/answers.db")) == []
    assert sorted(each.name for each in place.root.iterdir()) == ["headrace.yaml", "text"]


def test_a_keys_own_amount_is_of_a_budget_that_is_there(place: ConfigFiles) -> None:
    text = LISTENER + f"usage: {{path: {place.root}/usage.db}}" + BUDGET
    for budgets, says in {
        "{dayly: {tokens: 9}}": "a: there is no budget of tokens by api_key named 'dayly'; did you mean 'daily'?",
        "{daily: {requests: 9}}": "a: there is no budget of requests by api_key named 'daily'",
        "{team: {tokens: 9}}": "a: there is no budget of tokens by api_key named 'team'",
    }.items():
        place.file("keys.yaml", f"keys: [{{id: a, hash: 'sha256:{'0' * 64}', budgets: {budgets}}}]\n")
        [problem] = place.problems(text)
        assert f"routes[0].policies.auth.keys: keys.yaml: {says}" in problem
    place.file("keys.yaml", f"keys: [{{id: a, hash: 'sha256:{'0' * 64}', budgets: {{daily: {{tokens: 9}}}}}}]\n")
    assert place.problems(text) == []


def test_what_is_wrong_with_keys_is_told_once_and_revoked_ones_hold_up_nothing(place: ConfigFiles) -> None:
    budgets = f"usage: {{path: {place.root}/usage.db}}\nbudgets: {{daily: {{tokens: 5}}}}\n"
    routes = [f"{{match: {{path: /{i}}}, respond: {{status: 200}}, policies: *p}}" for i in range(9)]
    policies = "policies: &p {auth: {keys: keys.yaml}, tokens: {}}"
    routes[0] = routes[0].replace("policies: *p", policies)
    text = LISTENER + budgets + f"routes: [{', '.join(routes)}]\n"
    file = place.root / "keys.yaml"
    for number in range(5):
        add_key(file, f"k{number}", datetime.now(UTC), budgets=(("gone", "tokens", 5),))
    [problem] = place.problems(text)
    assert "routes[0].policies.auth.keys: keys.yaml: k0, k1, k2 and 2 more: there is no budget of tokens" in problem
    assert problem.endswith("; correct the key's `budgets` there, or revoke it")
    for number in range(5):
        revoke_key(file, f"k{number}", datetime.now(UTC))
    assert place.problems(text) == []
    place.file("keys.yaml", "keys: [{id: a, hash: nonsense}]\n")
    [problem] = place.problems(text)
    assert "routes[0].policies.auth.keys: keys.yaml: keys[0].hash" in problem


@pytest.mark.parametrize(
    ("budget", "says"),
    [
        ("{per: day}", "say how much"),
        ("{tokens: 0}", "greater than or equal to 1"),
        ("{tokens: 5, per: week}", "expected `hour`, `day` or `month`"),
        ("{tokens: 5, time_zone: Mars/Olympus}", "'Mars/Olympus' is no time zone of this box"),
        ("{tokens: 5, window: rolling, time_zone: Europe/Berlin}", "a rolling window has no time zone"),
    ],
)
def test_a_budget_that_cannot_be_is_told(place: ConfigFiles, budget: str, says: str) -> None:
    [problem] = place.problems(LISTENER + f"budgets: {{b: {budget}}}\n")
    assert says in problem


def test_what_two_keys_of_a_policy_say_of_each_other_is_told_at_the_policy(place: ConfigFiles) -> None:
    app = "upstreams: {app: {servers: ['http://a']}}\n"
    cors = "routes: [{to: app, policies: {cors: {origins: ['*'], credentials: true}}}]\n"
    assert place.problems(LISTENER + app + cors) == [
        "headrace.yaml:3:37: routes[0].policies.cors: credentials for the origin * would let every web page act as its "
        "visitor; list origins"
    ]
    [problem] = place.problems(LISTENER + app + cors.replace("credentials", "credential"))
    assert problem == "headrace.yaml:3:54: routes[0].policies.cors.credential: unknown key; did you mean `credentials`?"


@pytest.mark.parametrize(("content", "value"), [("sk-1", b"sk-1"), ("sk-1\n", b"sk-1"), ("sk-1\r\n", b"sk-1")])
def test_a_secret_is_its_file_without_the_last_line_break(place: ConfigFiles, content: str, value: bytes) -> None:
    place.file("s", content)
    assert place.load(LISTENER + "secrets: {a: {file: s}}\n").materials["secret:a"] == value


@pytest.mark.parametrize("content", ["", "\n", "sk 1\n", "sk-1\n\n", "sk-\u00e9\n"])
def test_what_no_secret_can_be_is_told_without_showing_it(place: ConfigFiles, content: str) -> None:
    place.file("s", content)
    [problem] = place.problems(LISTENER + "secrets: {a: {file: s}}\n")
    assert problem.startswith("headrace.yaml:2:14: secrets.a: s ")
    assert "sk" not in problem


def test_a_variable_that_is_not_set_is_told(place: ConfigFiles) -> None:
    [problem] = place.problems(LISTENER + "secrets: {a: {env: HEADRACE_TEST_UNSET}}\n")
    assert "secrets.a: the environment variable HEADRACE_TEST_UNSET is empty or not set" in problem


def test_models_become_settings_of_the_engine(place: ConfigFiles) -> None:
    folder = place.model_folder("m")
    loaded = place.load(
        LISTENER + "models: {threads: 2, hang: 10s, max_body: 1MiB, memory: 50%, "
        "chat: {path: m, slots: 4, context: 512, max_stall: 50ms, queue: 7, batching: {max_batch: 8, window: 2ms}, "
        "prefix_ttl: 1m, prefix_sharing: all, speculation: false, deterministic: true, "
        "instances: 2, provider: cuda, provider_options: {device_id: 1}, fallback: [cpu], idle_unload: 30m}}\n"
    )
    assert loaded.engine is not None
    assert (loaded.engine.threads, loaded.engine.hang_s, loaded.engine.max_body_bytes) == (2, 10.0, 1 << 20)
    [model] = loaded.engine.models
    assert (model.name, model.path, model.slots, model.context) == ("chat", str(folder), 4, 512)
    assert (model.max_stall_s, model.max_queue) == (0.05, 7)
    assert (model.batching.max_batch, model.batching.window_s) == (8, 0.002)
    assert (model.prefix_ttl_s, model.prefix_sharing) == (60.0, "all")
    assert (model.speculation, model.deterministic) == (False, True)
    assert (loaded.engine.memory, model.idle_unload_s) == (0.5, 1800.0)
    assert model.placement == Placement("cuda", {"device_id": "1"}, ("cpu",))
    assert model.instances == 2
    assert loaded.proxy.engine_socket == loaded.engine.socket_path


def test_a_provider_that_is_not_installed_is_told_with_what_is(place: ConfigFiles) -> None:
    place.model_folder("m")
    [problem] = place.problems(LISTENER + "models: {chat: {path: m, provider: tensorrt, fallback: [cuda]}}\n")
    assert problem.startswith("headrace.yaml:2:36: models.chat.provider: this onnxruntime has cpu, not tensorrt or")


def test_without_models_there_is_no_engine(place: ConfigFiles) -> None:
    loaded = place.load(LISTENER + "models: {threads: 2}\n")
    assert loaded.engine is None
    assert loaded.proxy.engine_socket is None


def test_a_damaged_model_folder_is_told(place: ConfigFiles) -> None:
    models = "models: {chat: {path: m}}\n"
    (place.root / "m").mkdir()
    [problem] = place.problems(LISTENER + models)
    assert problem.startswith("headrace.yaml:2:23: models.chat.path: m/model.yaml: No such file or directory")
    place.model_folder("m", files={"model.onnx": {"bytes": 3, "sha256": "0" * 64}})
    place.file("m/model.onnx", b"12")
    assert "has 2 bytes, the manifest says 3" in place.problems(LISTENER + models)[0]


@pytest.mark.parametrize(
    ("address", "loopback"),
    [
        ("127.0.0.1:80", True),
        ("127.8.8.8:80", True),
        ("[::1]:80", True),
        ("localhost:80", True),
        ("unix:/run/x.sock", True),
        ("0.0.0.0:80", False),
        ("[::]:80", False),
        ("10.0.0.1:80", False),
        ("example.com:80", False),
    ],
)
def test_which_addresses_only_this_machine_reaches(address: str, loopback: bool) -> None:
    assert is_loopback(address) is loopback


ENGINE = "models: {chat: {path: m}}\nroutes: [{to: engine%s}]\n"
OUTSIDE = "listeners: [{address: '0.0.0.0:8080'}]\n"
AUTH = ", policies: {auth: {keys: keys.yaml}}"


@pytest.mark.parametrize(
    ("listeners", "rest", "refused"),
    [
        (LISTENER, "", False),
        (OUTSIDE, "", True),
        (OUTSIDE, AUTH, False),
        (OUTSIDE, AUTH.replace("auth: {keys: keys.yaml}", "basic_auth: {users: users}"), False),
        (OUTSIDE, ", allow_anonymous: true", False),
        ("listeners: [{address: '127.0.0.1:443'}, {address: '0.0.0.0:80', redirect: https}]\n", "", False),
    ],
)
def test_the_engine_is_not_open_to_the_network(place: ConfigFiles, listeners: str, rest: str, refused: bool) -> None:
    place.model_folder("m")
    place.file("keys.yaml", "keys: []\n")
    place.file("users", "")
    problems = place.problems(listeners + ENGINE % rest)
    assert bool(problems) is refused
    assert all("serves engine without a key on 0.0.0.0:8080" in problem for problem in problems)


def test_neither_is_an_upstream_that_is_paid_with_our_key(place: ConfigFiles) -> None:
    place.file("s", "sk-1")
    upstream = "secrets: {a: {file: s}}\nupstreams: {u: {servers: ['https://a'], key: {secret: a}}}\n"
    [problem] = place.problems(OUTSIDE + upstream + "routes: [{to: u}]\n")
    assert "routes[0]: serves u without a key" in problem


def test_a_key_must_name_a_secret(place: ConfigFiles) -> None:
    place.file("s", "sk-1")
    upstream = "secrets: {openai: {file: s}}\nupstreams: {u: {servers: ['https://a'], key: {secret: opnai}}}\n"
    assert place.problems(LISTENER + upstream) == [
        "headrace.yaml:3:55: upstreams.u.key.secret: there is no secret named 'opnai'; did you mean 'openai'?"
    ]


@pytest.mark.parametrize(("cores", "workers", "beside_an_engine"), [(1, 1, 1), (2, 2, 1), (8, 8, 7), (1000, 256, 256)])
def test_there_are_as_many_workers_as_cores_less_the_engines(
    place: ConfigFiles, monkeypatch: pytest.MonkeyPatch, cores: int, workers: int, beside_an_engine: int
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(cores)))
    limited = (
        "limits: {l: {requests: 1/s}}\nupstreams: {u: {servers: ['http://a']}}\nroutes: [{to: u, policies: {%s}}]\n"
    )
    text = LISTENER + "workers: auto\n" + limited % "rate_limit: [l], in_flight: {max: 1}"
    assert place.load(text).workers == workers
    place.model_folder("m")
    assert place.load(text + "models: {m: {path: m}}\n").workers == beside_an_engine
    assert place.load(text.replace("auto", "3")).workers == 3


def test_the_runtime_dir_leaves_room_for_sockets(place: ConfigFiles) -> None:
    [problem] = place.problems(LISTENER + f"runtime_dir: /{'x' * 90}\n")
    assert "is too long for sockets inside it; expected 80 bytes at most" in problem
    assert place.load(LISTENER + "runtime_dir: run\n").runtime_dir == place.root / "run"


def test_the_access_log_is_a_word_or_a_file_beside_the_configuration(place: ConfigFiles) -> None:
    assert place.load(LISTENER).access_log == "stderr"
    assert place.load(LISTENER + "log: {access: off}\n").access_log == "off"
    assert place.load(LISTENER + "log: {access: log/access}\n").access_log == place.root / Path("log/access")
