"""How much memory the box can still give: what bounds the models that are loaded and their key/value memory.

Owns reading Linux's two answers, the kernel's estimate for the whole box and the control group's limit for this
process. Knows nothing of models.
"""

from __future__ import annotations

from pathlib import Path

_PROC = Path("/proc")
_CGROUP = Path("/sys/fs/cgroup")


def reachable_bytes(proc: Path = _PROC, cgroup: Path = _CGROUP) -> int:
    """Bytes that this process holds for itself or could still take. Raises MemoryError as ``available_bytes`` does."""
    return _own(proc) + available_bytes(proc, cgroup)


def available_bytes(proc: Path = _PROC, cgroup: Path = _CGROUP) -> int:
    """Bytes that can be taken without swapping: the lower of the box's and of this control group's (v2).

    Where one of the two does not say, the other counts alone. Raises MemoryError when neither says.
    """
    answers = [found for found in (_of_box(proc), _of_group(proc, cgroup)) if found is not None]
    if not answers:
        raise MemoryError(f"neither {proc / 'meminfo'} nor {cgroup} says how much memory there is")
    return min(answers)


def _own(proc: Path) -> int:
    """What the process has that no file could replace; mapped files count as available."""
    return _kib(proc / "self/status", "RssAnon:") or 0


def _of_box(proc: Path) -> int | None:
    return _kib(proc / "meminfo", "MemAvailable:")


def _kib(file: Path, name: str) -> int | None:
    """Bytes of the line ``name   N kB``; None when there is none."""
    for line in _read(file).splitlines():
        if line.startswith(name):
            return int(line.split()[1]) << 10
    return None


def _of_group(proc: Path, cgroup: Path) -> int | None:
    """What the group's limit leaves; pages of files count as free, since they can be dropped."""
    path = next((line[3:] for line in _read(proc / "self/cgroup").splitlines() if line.startswith("0::")), None)
    if path is None:
        return None
    group = cgroup / path.lstrip("/")
    limit, current = _read(group / "memory.max").strip(), _read(group / "memory.current").strip()
    if not limit.isdecimal() or not current.isdecimal():  # "max", or the root, which has no limit
        return None
    files = dict(line.split() for line in _read(group / "memory.stat").splitlines())
    return max(0, int(limit) - int(current) + int(files.get("inactive_file", 0)))


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
