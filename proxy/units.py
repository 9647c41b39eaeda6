"""Quantities as an operator writes them: ``2ms``, ``8MiB``, ``600/min``, ``20%``.

Owns the spelling of units, both ways: a parsed value is a plain number in SI units (seconds, bytes, a fraction), and a
model dumped to JSON spells it with its unit again, so that a dump can be read back and ``check --print`` reads like
the file. A bare number is refused: which unit it had would be a guess.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator, PlainSerializer, PlainValidator, WithJsonSchema

_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "kB": 10**3, "MB": 10**6, "GB": 10**9}
_PERIODS = {"s": 1.0, "min": 60.0, "h": 3600.0, "day": 86400.0}
_NUMBER_UNIT = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z%]+)")


def _split(value: Any, units: dict[str, Any], example: str) -> tuple[float, str]:
    if isinstance(value, str) and (found := _NUMBER_UNIT.fullmatch(value.strip())) and found[2] in units:
        return float(found[1]), found[2]
    raise ValueError(f"{value!r} is not understood; write a number with a unit ({', '.join(units)}), like {example}")


def parse_duration(value: Any) -> float:
    """Seconds of ``"10s"``, ``"2ms"``, ``"1.5h"``. Raises ValueError on anything else."""
    number, unit = _split(value, _SECONDS, "30s")
    return number * float(_SECONDS[unit])


def parse_size(value: Any) -> int:
    """Bytes of ``"8MiB"``, ``"64kB"``. Raises ValueError on anything else."""
    number, unit = _split(value, _BYTES, "8MiB")
    return int(number * _BYTES[unit])


def parse_percent(value: Any) -> float:
    """The fraction of ``"20%"``, in 0..1. Raises ValueError on anything else."""
    number, _ = _split(value, {"%": 1}, "20%")
    if not 0 <= number <= 100:
        raise ValueError(f"{value!r} is outside 0% to 100%")
    return number / 100


class Rate(NamedTuple):
    """``events`` in any ``per_s`` seconds."""

    events: int
    per_s: float


def parse_rate(value: Any) -> Rate:
    """A Rate of ``"600/min"``, ``"5/s"``. Raises ValueError on anything else."""
    if isinstance(value, str) and (found := re.fullmatch(r"([1-9]\d{0,11})\s*/\s*(s|min|h|day)", value.strip())):
        return Rate(int(found[1]), _PERIODS[found[2]])
    raise ValueError(f"{value!r} is not a rate; write a whole number per s, min, h or day, like 600/min")


def spell_duration(seconds: float) -> str:
    """The shortest exact spelling: 0.002 -> ``2ms``."""
    for unit in ("d", "h", "m", "s", "ms", "us"):
        number = seconds / _SECONDS[unit]
        if number >= 1 and abs(number - round(number)) < 1e-9 * max(1.0, number):
            return f"{round(number)}{unit}"
    return f"{seconds:g}s"


def spell_size(size: int) -> str:
    """The shortest exact spelling: 8388608 -> ``8MiB``."""
    for unit in ("GiB", "MiB", "KiB"):
        if size and size % _BYTES[unit] == 0:
            return f"{size // _BYTES[unit]}{unit}"
    return f"{size}B"


def spell_percent(fraction: float) -> str:
    """0.2 -> ``20%``."""
    return f"{fraction * 100:g}%"


def spell_rate(rate: Rate) -> str:
    """Rate(600, 60) -> ``600/min``."""
    period = next(name for name, seconds in _PERIODS.items() if seconds == rate.per_s)
    return f"{rate.events}/{period}"


def spell_like(written: Any, number: float) -> str:
    """A number in a unit of the kind in which another one was written: 2764800 beside ``1d`` -> ``32d``."""
    found = _NUMBER_UNIT.fullmatch(written.strip()) if isinstance(written, str) else None
    if found is None or not number:
        return f"{number:g}" if isinstance(number, float) else str(number)
    if found[2] in _SECONDS:
        return spell_duration(number)
    if found[2] in _BYTES:
        return spell_size(int(number))
    return spell_percent(number) if found[2] == "%" else str(number)


def _text(pattern: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "pattern": pattern})


def _spelt(spell: Any) -> PlainSerializer:
    return PlainSerializer(spell, when_used="json")


Duration = Annotated[float, BeforeValidator(parse_duration), _spelt(spell_duration), _text("NUMBER us|ms|s|m|h|d")]
Size = Annotated[int, BeforeValidator(parse_size), _spelt(spell_size), _text("NUMBER B|KiB|MiB|GiB")]
Percent = Annotated[float, BeforeValidator(parse_percent), _spelt(spell_percent), _text("NUMBER%")]
RateText = Annotated[Rate, PlainValidator(parse_rate), _spelt(spell_rate), _text("COUNT/s|min|h|day")]
