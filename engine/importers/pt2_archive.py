"""A PyTorch exported program (.pt2), checked so that reading it runs no code of its author's, copied without pickles.

PyTorch evaluates what such a file says in three places: pickled tensors and inputs, the names of operators, and the
expressions of symbolic sizes. Here the first are left out or refused, the others must be among those that exported
programs have. Knows no torch.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engine.model_folder import ModelError

_MOST_MEMBERS = 100_000
_MOST_JSON_BYTES = 256 << 20
_PIECE_BYTES = 16 << 20
_MEMBER = re.compile(
    r"[^/]+/(?:(?P<weights>data/(?:weights|constants)/[\w.-]+)|(?P<program>models/model\.json)"
    r"|(?P<inputs>data/sample_inputs/model\.pt)|archive_format|archive_version|byteorder|version|\.data/\w+)"
)
_OPERATOR = re.compile(
    r"(?:torch\.ops\.(?:aten|prims|prim|higher_order|torchvision)\.|_operator\.|math\.)\w+(?:\.\w+)?"
)
_FUNCTIONS = (
    "Symbol|Integer|Max|Min|Mod|PythonMod|FloorDiv|CeilDiv|CleanDiv|ModularIndexing|Where|Eq|Ne|Lt|Le|Gt|Ge|And|Or|Not"
    "|TruncToInt|FloorToInt|CeilToInt|RoundToInt|ToFloat|IntTrueDiv|FloatTrueDiv|PowByNatural|Pow|floor|ceiling"
    "|int_oo|oo|True|False|positive|nonnegative|integer|real"
)
_MOST_CHARACTERS = 10_000
_EXPRESSION = re.compile(rf"(?:\b(?:{_FUNCTIONS}|[suzf]+\d+|\d+)\b|'[suzf]+\d+'|[\s+\-*/%(),=<>&|~.])*")
_SYMBOL = re.compile(r"[suzf]+\d+")


def checked_copy(source: Path, target: Path) -> None:
    """Write to ``target`` what of the program may be read. Raises ModelError."""
    try:
        with zipfile.ZipFile(source) as archive, zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as copy:
            _copy(archive, copy)
    except OSError as error:
        raise ModelError(f"{source}: {error.strerror}; check the path") from error
    except (zipfile.BadZipFile, ValueError, RecursionError, NotImplementedError) as error:
        raise ModelError(
            f"{source}: is no exported program that can be read ({error}); write it anew by torch.export.save of"
            " PyTorch 2.9 or later"
        ) from error


def _copy(archive: zipfile.ZipFile, copy: zipfile.ZipFile) -> None:
    members = archive.infolist()
    if len(members) > _MOST_MEMBERS or len({member.filename for member in members}) != len(members):
        raise ValueError("its table of contents is damaged")
    kinds = {member.filename: _MEMBER.fullmatch(member.filename) for member in members}
    if strange := next((name for name, kind in kinds.items() if kind is None), None):
        raise ValueError(f"it holds {strange!r}, which is no part of an exported program")
    if sum(bool(kind and kind["program"]) for kind in kinds.values()) != 1:
        raise ValueError("it must hold one program, models/model.json")
    for member in members:
        if member.compress_type != zipfile.ZIP_STORED:  # a bomb would be; PyTorch compresses nothing
            raise ValueError(f"{member.filename!r} is compressed")
        kind = kinds[member.filename]
        if kind and kind["inputs"]:
            copy.writestr(member.filename, b"")  # a pickle, and only an example
            continue
        if member.filename.endswith(".json"):
            _check_json(member.filename, archive.read(member) if member.file_size <= _MOST_JSON_BYTES else b"")
        with archive.open(member) as packed, copy.open(member.filename, "w", force_zip64=True) as unpacked:
            while piece := packed.read(_PIECE_BYTES):
                unpacked.write(piece)


def _check_json(name: str, text: bytes) -> None:
    document = json.loads(text)
    if not name.endswith("/models/model.json"):
        for weight, entry in document.get("config", {}).items():
            if entry.get("use_pickle") is not False or not entry.get("tensor_meta"):
                raise ValueError(f"{weight!r} is a pickle, which is a program of its author's, and no plain tensor")
            if not re.fullmatch(r"(?:weight|tensor)_\d+", str(entry.get("path_name"))):
                raise ValueError(f"{weight!r} lies in {entry.get('path_name')!r}, which is no plain tensor")
        return
    for key, value in _entries(document):
        if key in ("target", "as_operator") and isinstance(value, str) and not _OPERATOR.fullmatch(value):
            raise ValueError(f"the operator {value[:100]!r} is not one of PyTorch's own")
        if key == "expr_str" and not _is_formula(value):
            raise ValueError(f"the size {str(value)[:100]!r} is more than a formula")
        if key == "range_constraints" and not all(_SYMBOL.fullmatch(name) for name in value):
            raise ValueError("one of its symbols is more than a name")
        if key in ("guards_code", "as_custom_obj", "custom_obj_values") and value:
            raise ValueError(f"it holds {key}, which is more than tensors and operators")


def _is_formula(text: Any) -> bool:
    return isinstance(text, str) and len(text) <= _MOST_CHARACTERS and _EXPRESSION.fullmatch(text) is not None


def _entries(document: Any) -> Iterator[tuple[str, Any]]:
    """All keys of all tables with what they hold."""
    waiting = [document]
    while waiting:
        here = waiting.pop()
        if isinstance(here, dict):
            yield from here.items()
            waiting.extend(here.values())
        elif isinstance(here, list):
            waiting.extend(here)
