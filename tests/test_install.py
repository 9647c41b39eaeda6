"""install.sh as root runs it, but under a prefix, so that nothing of this machine is touched."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from tests.conftest import MODELS, ROOT

TIMEOUT_S = 600.0


def install(*arguments: str, checkout: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    """What ``./install.sh ARGUMENTS`` does and says."""
    return subprocess.run(
        ["./install.sh", *arguments],
        cwd=checkout,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )


@pytest.fixture(scope="module")
def prefix(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prefix with an installation in it."""
    directory = tmp_path_factory.mktemp("prefix")
    done = install("--prefix", str(directory), "--cpu")
    assert done.returncode == 0, done.stdout + done.stderr
    (directory / "said").write_text(done.stdout + done.stderr)
    return directory


def test_it_prints_a_key_once_and_stores_its_hash_alone(prefix: Path) -> None:
    said, keys = (prefix / "said").read_text(), prefix / "etc/headrace/keys.yaml"
    [key] = [line for line in said.splitlines() if line.startswith("hr_")]
    assert key not in keys.read_text()
    assert "sha256:" in keys.read_text()
    assert keys.stat().st_mode & 0o007 == 0


def test_it_says_how_to_hand_out_the_ca(prefix: Path) -> None:
    assert f"{prefix}/etc/headrace/tls/ca.pem" in (prefix / "said").read_text()


def test_the_installed_program_finds_its_configuration_sound(prefix: Path) -> None:
    program = prefix / "bin/headrace"
    done = subprocess.run(
        [program, "check", "-c", prefix / "etc/headrace/headrace.yaml"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_both_models_are_installed(prefix: Path) -> None:
    assert all((prefix / "var/lib/headrace/models" / name / "model.yaml").exists() for name in MODELS)


def test_the_units_name_the_prefix_and_are_sound(prefix: Path) -> None:
    units = prefix / "etc/systemd/system"
    text = (units / "headrace.service").read_text()
    assert f"{prefix}/venv/bin/headrace" in text
    assert "/opt/headrace" not in text.replace(str(prefix), "")
    done = subprocess.run(
        ["systemd-analyze", "verify", *units.glob("headrace.*")], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_again_it_upgrades_and_keeps_configuration_keys_and_models(prefix: Path) -> None:
    kept = [
        prefix / "etc/headrace/headrace.yaml",
        prefix / "etc/headrace/keys.yaml",
        prefix / "etc/headrace/tls/ca.pem",
    ]
    with kept[0].open("a") as file:
        file.write("# mine\n")
    before = [path.read_bytes() for path in kept]
    done = install("--prefix", str(prefix), "--cpu")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "hr_" not in done.stdout
    assert [path.read_bytes() for path in kept] == before


def test_uninstalling_keeps_what_is_the_operators_and_purging_does_not(prefix: Path) -> None:
    """The last test of the installation: it takes it away."""
    assert install("--prefix", str(prefix), "--uninstall").returncode == 0
    assert not (prefix / "venv").exists()
    assert not list((prefix / "etc/systemd/system").iterdir())
    assert (prefix / "etc/headrace/keys.yaml").exists()
    assert install("--prefix", str(prefix), "--uninstall", "--purge").returncode == 0
    assert not (prefix / "etc/headrace").exists()
    assert not (prefix / "var/lib/headrace").exists()


@pytest.mark.parametrize("arguments", [(), ("--uninstall",), ("--uninstall", "--purge")])
def test_a_dry_run_prints_steps_and_does_nothing(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    done = install("--prefix", str(tmp_path), "--dry-run", *arguments)
    assert done.returncode == 0, done.stderr
    assert "would run:" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_of_the_system_needs_no_root_and_names_the_places() -> None:
    done = install("--dry-run")
    assert done.returncode == 0, done.stderr
    for place in ("/opt/headrace/venv", "/etc/headrace/headrace.yaml", "/var/lib/headrace/models", "useradd"):
        assert place in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("tyr",), "unknown argument: tyr"),
        (("--prefix", "relative"), "absolute"),
        (("--purge",), "--uninstall"),
        (("try", "--dry-run"), "only --cpu and --gpu"),
    ],
)
def test_a_wrong_argument_is_named(arguments: tuple[str, ...], message: str) -> None:
    done = install(*arguments)
    assert done.returncode == 1
    assert message in done.stderr


def test_an_interpreter_without_venv_is_one_clear_message(tmp_path: Path) -> None:
    """A PATH on which the only Python cannot import ensurepip, as Debian packages it, and a checkout without .venv."""
    tools, checkout = tmp_path / "tools", tmp_path / "checkout"
    shutil.copytree(ROOT / "install", checkout / "install")
    shutil.copy(ROOT / "install.sh", checkout)
    shutil.copy(ROOT / "pyproject.toml", checkout)
    tools.mkdir()
    for tool in ("bash", "uname", "getconf", "dirname", "cat", "grep", "sha256sum", "cut"):
        found = shutil.which(tool)
        assert found is not None
        (tools / tool).symlink_to(found)
    python = tools / "python3.11"
    python.write_text('#!/bin/sh\ncase "$2" in *ensurepip*) exit 1;; esac\nexit 0\n')
    python.chmod(0o755)
    done = install("try", checkout=checkout, PATH=str(tools))
    assert done.returncode == 1
    assert "python3.11-venv" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("prefix", ["relative/place", "/", "/srv/two words", "/srv/a|b"])
def test_a_prefix_that_no_unit_could_name_is_refused(prefix: str) -> None:
    done = install("--prefix", prefix, "--dry-run")
    assert done.returncode == 1
    assert "--prefix" in done.stderr


def test_a_port_that_is_none_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    done = install("try", HEADRACE_PORT="84430", HEADRACE_HOME=str(tmp_path / "home"))
    assert done.returncode == 1
    assert "HEADRACE_PORT=84430" in done.stderr
    assert not (tmp_path / "home").exists()


def test_a_directory_of_any_name_gets_a_configuration_that_names_it(tmp_path: Path) -> None:
    home = "/home/it's & #1, {a|b} c"
    script = """
        root=$PWD dry_run=
        . install/models.sh
        . install/try.sh
        write_try_configuration "$1" 9000 "$2"
        configured_port "$2"
    """
    file = tmp_path / "headrace.yaml"
    done = subprocess.run(
        ["bash", "-euc", script, "bash", home, str(file)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "9000\n"
    written = yaml.safe_load(file.read_text())
    assert written["log"]["access"] == f"{home}/access.log"
    assert written["listeners"][0]["address"] == "127.0.0.1:9000"


@pytest.mark.parametrize(("extra", "form"), [("cpu", ""), ("gpu", " --weights exact")])
def test_a_gpu_gets_the_default_models_in_the_form_that_it_can_multiply(tmp_path: Path, extra: str, form: str) -> None:
    script = """
        . install/models.sh
        step() { echo "$*"; }
        extra=$2 models=(chat)
        runtime_extra() { echo "$extra"; }
        pull_models headrace "$1"
    """
    done = subprocess.run(
        ["bash", "-euc", script, "bash", str(tmp_path), extra], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"headrace model pull chat --dir {tmp_path}{form}\n"


#: Stands for the interpreter that runs a half of the suite: ends with the code that its environment says, or waits.
HALF = """#!{python}
import os, sys, time
from pathlib import Path
half = "first" if any(argument.startswith("--ignore") for argument in sys.argv) else "second"
try:
    Path(half).touch()
    time.sleep(600.0 if os.environ[half.upper()] == "wait" else 0.0)
except KeyboardInterrupt:
    Path(half + " cleaned up").touch()
    sys.exit(2)
sys.exit(int(os.environ[half.upper()]))
"""


def halves(directory: Path, first: str, second: str) -> subprocess.Popen[str]:
    """The suite's two halves, run as the installer does."""
    python = directory / "python"
    python.write_text(HALF.format(python=sys.executable))
    python.chmod(0o755)
    script = """
        say() { echo "$*"; }
        fail() { echo "$*"; exit 1; }
        root=$PWD
        . "$1"
        run_both_halves ./python
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # to be heard there, if it is ignored here
    try:
        return subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", script, "bash", str(ROOT / "install/test.sh")],
            cwd=directory,
            env={**os.environ, "FIRST": first, "SECOND": second},
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(("first", "second", "code"), [("0", "0", 0), ("1", "0", 1), ("0", "3", 1), ("1", "2", 1)])
def test_the_suite_passes_if_both_halves_do(tmp_path: Path, first: str, second: str, code: int) -> None:
    run = halves(tmp_path, first, second)
    said, _ = run.communicate(timeout=TIMEOUT_S)
    assert run.returncode == code
    assert ("tests failed" in said) == bool(code)
    if code:
        assert f"ended with {first} and" in said
        assert f"with {second}" in said


def test_ctrl_c_ends_both_halves_of_the_suite(tmp_path: Path) -> None:
    run = halves(tmp_path, "wait", "wait")
    while not ((tmp_path / "first").exists() and (tmp_path / "second").exists()):
        time.sleep(0.01)
    os.killpg(run.pid, signal.SIGINT)
    run.communicate(timeout=TIMEOUT_S)
    assert run.returncode == 1
    assert (tmp_path / "first cleaned up").exists()
    assert (tmp_path / "second cleaned up").exists()
