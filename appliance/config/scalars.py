"""What a plain YAML scalar means: the YAML 1.2 core schema, less what JSON cannot say.

``no`` and ``on`` are text, ``1:20`` is text, a date is text. A number with a leading zero is refused: YAML 1.1 reads
``08080`` as text and ``0777`` as octal, YAML 1.2 as decimal, and no guess is safe. (YAML 1.2.2, section 10.3.2.)
"""

from __future__ import annotations

import re

Scalar = str | int | float | bool | None

_CONSTANTS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INTEGER = re.compile(r"[-+]?[0-9]+")
_OCTAL = re.compile(r"0o[0-7]+")
_HEXADECIMAL = re.compile(r"0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_MAX_DIGITS = 19  # more than any 64-bit quantity; also keeps int() from quadratic work


def resolve(text: str) -> Scalar:
    """The value of the plain scalar ``text``. Raises ValueError if it is a number that should not be guessed at."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _NOT_FINITE.fullmatch(text):
        raise ValueError(f"{text} is not a finite number")
    if _INTEGER.fullmatch(text):
        digits = text.lstrip("-+")
        if len(digits) > 1 and digits[0] == "0":
            raise ValueError(
                f'{text} has a leading zero; write {int(digits[-_MAX_DIGITS:])}, or "{text}" if it is text'
            )
        return _bounded(text, 10)
    if _OCTAL.fullmatch(text):
        return _bounded(text, 8)
    if _HEXADECIMAL.fullmatch(text):
        return _bounded(text, 16)
    if _FLOAT.fullmatch(text):
        value = float(text)
        if value in (float("inf"), float("-inf")):
            raise ValueError(f"{text} is not a finite number")
        return value
    return text


def _bounded(text: str, base: int) -> int:
    if len(text) > _MAX_DIGITS + 2:
        raise ValueError(f"a number of {len(text)} digits is out of range")
    return int(text, base)
