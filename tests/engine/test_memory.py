"""What the box and the control group say of memory, and which of them counts."""

from pathlib import Path

import pytest

from engine.memory import available_bytes

GIB = 1 << 30


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def available(root: Path) -> int:
    return available_bytes(root / "proc", root / "cgroup")


BOX = {"proc/meminfo": "MemTotal: 16777216 kB\nMemFree: 1 kB\nMemAvailable:    8388608 kB\n"}
GROUP = {
    "proc/self/cgroup": "0::/system.slice/headrace.service\n",
    "cgroup/system.slice/headrace.service/memory.max": f"{4 * GIB}\n",
    "cgroup/system.slice/headrace.service/memory.current": f"{3 * GIB}\n",
    "cgroup/system.slice/headrace.service/memory.stat": f"anon 7\ninactive_file {GIB}\n",
}


def test_the_lower_of_box_and_group_counts_and_cached_files_are_free(tmp_path: Path) -> None:
    write(tmp_path, BOX)
    assert available(tmp_path) == 8 * GIB
    write(tmp_path, GROUP)
    assert available(tmp_path) == 2 * GIB


@pytest.mark.parametrize(
    "group",
    [
        {"cgroup/system.slice/headrace.service/memory.max": "max\n"},
        {"proc/self/cgroup": "5:memory:/old\n"},
        {"proc/self/cgroup": "0::/elsewhere\n"},
    ],
)
def test_a_group_without_a_limit_does_not_count(tmp_path: Path, group: dict[str, str]) -> None:
    write(tmp_path, {**BOX, **GROUP, **group})
    assert available(tmp_path) == 8 * GIB


def test_a_group_over_its_limit_has_nothing_left(tmp_path: Path) -> None:
    write(tmp_path, {**BOX, **GROUP, "cgroup/system.slice/headrace.service/memory.current": f"{9 * GIB}\n"})
    assert available(tmp_path) == 0


def test_a_box_that_says_nothing_is_told(tmp_path: Path) -> None:
    with pytest.raises(MemoryError, match="meminfo"):
        available(tmp_path)


def test_this_box_answers() -> None:
    assert available_bytes() > 0
