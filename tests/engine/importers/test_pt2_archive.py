"""Exported programs that nobody vouches for: nothing of them is unpickled or evaluated."""

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from engine.importers.pt2_archive import checked_copy
from engine.model_folder import ModelError

SIZE = "Symbol('s77', positive=True, integer=True)"
PROGRAM = {
    "graph_module": {
        "graph": {
            "nodes": [{"target": "torch.ops.aten.linear.default", "inputs": []}, {"target": "_operator.add"}],
            "tensor_values": {"x": {"sizes": [{"as_expr": {"expr_str": SIZE}}, {"as_int": 4}]}},
            "custom_obj_values": {},
        }
    },
    "range_constraints": {"s77": {"min_val": 0}},
    "guards_code": [],
}
WEIGHTS = {"config": {"w": {"path_name": "weight_0", "use_pickle": False, "tensor_meta": {"dtype": 7}}}}
CONSTANTS: dict[str, Any] = {"config": {}}


def archive(path: Path, changes: Mapping[str, Any], compression: int = zipfile.ZIP_STORED) -> Path:
    members: dict[str, Any] = {
        "tiny/data/weights/weight_0": b"\x80\x04 numbers may be any bytes",
        "tiny/data/weights/model_weights_config.json": WEIGHTS,
        "tiny/data/constants/model_constants_config.json": CONSTANTS,
        "tiny/models/model.json": PROGRAM,
        "tiny/data/sample_inputs/model.pt": b"\x80\x04cos\nsystem\n.",
        "tiny/archive_format": b"pt2",
        "tiny/archive_version": b"0",
        "tiny/.data/version": b"3\n",
        "tiny/byteorder": b"little",
        **changes,
    }
    with zipfile.ZipFile(path, "w", compression) as written:
        for name, content in members.items():
            if content is not None:
                written.writestr(name, content if isinstance(content, bytes) else json.dumps(content))
    return path


def with_program(**change: Any) -> dict[str, Any]:
    return {"tiny/models/model.json": {**PROGRAM, **change}}


def nodes(*targets: str) -> dict[str, Any]:
    return with_program(graph_module={"nodes": [{"target": target} for target in targets]})


def size(expression: str) -> dict[str, Any]:
    return with_program(graph_module={"sizes": [{"as_expr": {"expr_str": expression}}]})


def test_a_program_is_copied_without_its_pickled_example(tmp_path: Path) -> None:
    checked_copy(archive(tmp_path / "tiny.pt2", {}), tmp_path / "copy.pt2")
    with zipfile.ZipFile(tmp_path / "tiny.pt2") as before, zipfile.ZipFile(tmp_path / "copy.pt2") as after:
        assert before.namelist() == after.namelist()
        for name in before.namelist():
            assert after.read(name) == (b"" if "sample_inputs" in name else before.read(name))


@pytest.mark.parametrize(
    "expression", ["2*s0 + 1", "Max(1, s0)", "FloorDiv(s0, 2)", "Eq(Mod(s0, 8), 0)", "u0", f"({SIZE}) // 2", "-1.5*s3"]
)
def test_formulas_of_sizes_are_taken(tmp_path: Path, expression: str) -> None:
    checked_copy(archive(tmp_path / "tiny.pt2", size(expression)), tmp_path / "copy.pt2")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (nodes("torch.hub.load"), "the operator 'torch.hub.load' is not one of"),
        (nodes("os.system"), "'os.system'"),
        (nodes("torch.ops.aten.add.Tensor.__globals__"), "is not one of"),
        (with_program(x={"as_operator": "builtins.eval"}), "'builtins.eval'"),
        (size("__import__('os').system('true')"), "more than a formula"),
        (size("exec(s0)"), "more than a formula"),
        (size("s0.__class__"), "more than a formula"),
        (size("Symbol('x; y')"), "more than a formula"),
        (size("1." * 20_000), "more than a formula"),
        (with_program(range_constraints={"open('x')": {}}), "more than a name"),
        (with_program(guards_code=["L['x'].size()[0] > 1"]), "guards_code"),
        (with_program(custom_obj_values={"obj": {}}), "custom_obj_values"),
        ({"tiny/data/weights/model_weights_config.json": {"config": {"w": {"use_pickle": True}}}}, "'w' is a pickle"),
        ({"tiny/data/weights/model_weights_config.json": {"config": {"w": {}}}}, "'w' is a pickle"),
        (
            {"tiny/data/constants/model_constants_config.json": {
                "config": {"c": {"use_pickle": False, "tensor_meta": {"dtype": 7}, "path_name": "custom_obj_0"}}
            }},
            "lies in 'custom_obj_0'",
        ),
        ({"tiny/data/aotinductor/model/model.so": b"ELF"}, "'tiny/data/aotinductor/model/model.so', which is no part"),
        ({"tiny/data.pkl": b"."}, "'tiny/data.pkl', which is no part"),
        ({"tiny/../../etc/x": b"."}, "which is no part"),
        ({"tiny/models/model.json": None}, "must hold one program"),
        ({"other/models/model.json": PROGRAM}, "must hold one program"),
        ({"tiny/models/model.json": b"{"}, "is no exported program that can be read"),
        ({"tiny/models/model.json": b"[" * 100_000}, "is no exported program that can be read"),
    ],
)  # fmt: skip
def test_what_would_run_code_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        checked_copy(archive(tmp_path / "tiny.pt2", change), tmp_path / "copy.pt2")


def test_bombs_and_other_files_are_refused(tmp_path: Path) -> None:
    bomb = archive(tmp_path / "bomb.pt2", {"tiny/data/weights/weight_1": bytes(1 << 20)}, zipfile.ZIP_DEFLATED)
    with pytest.raises(ModelError, match="is compressed"):
        checked_copy(bomb, tmp_path / "copy.pt2")
    (tmp_path / "other.pt2").write_bytes(b"\x80\x04 a pickle")
    with pytest.raises(ModelError, match="is no exported program"):
        checked_copy(tmp_path / "other.pt2", tmp_path / "copy.pt2")
    with pytest.raises(ModelError, match="No such file"):
        checked_copy(tmp_path / "none.pt2", tmp_path / "copy.pt2")
