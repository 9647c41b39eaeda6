"""Paths of routes with placeholders, and what a placeholder stands for in one request. Pure.

``/exact``, ``/prefix/*``, ``/users/{id}/posts``, ``/v{n}/{rest*}``: text, at most one placeholder in a segment, and as
the last segment ``*`` or ``{rest*}`` for everything that follows, also nothing. There is no repetition inside, so
matching takes one look at each segment. A placeholder takes one character or more of one segment, never only dots, so
that no text made of placeholders can become a dot segment.

A request has its path twice (``proxy.paths``): it is matched by the folded one, values are taken from the one that is
sent, byte by byte. The two have the same segments, once empty ones are left out, and in a segment the same characters
or escapes one by one; that is how a value is found in both.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from proxy.paths import BadPath, normalise

MAX_SEGMENTS: Final = 64
_NAME: Final = r"[A-Za-z_][A-Za-z0-9_]{0,31}"
_SEGMENT: Final = re.compile(rf"([^{{}}*]*)(?:\{{({_NAME})\}}([^{{}}*]*))?")
_TAIL: Final = re.compile(rf"\*|\{{({_NAME})\*\}}")
_UNIT: Final = re.compile(r"%[0-9A-Fa-f]{2}|.", re.DOTALL)
#: What text in redirects calls the request's own parts.
RESERVED: Final = frozenset({"host", "path", "query"})


class Segment(NamedTuple):
    """``before{name}after``, or only ``before`` where there is no placeholder (name is "")."""

    before: str
    name: str
    after: str


class Pattern(NamedTuple):
    """A path as a route writes it. tail: it ends in ``/*`` or ``/{tail_name*}``."""

    text: str
    segments: tuple[Segment, ...]
    tail: bool
    tail_name: str

    @property
    def names(self) -> frozenset[str]:
        """Of all placeholders."""
        names = {segment.name for segment in self.segments} | {self.tail_name}
        return frozenset(names - {""})

    @property
    def plain(self) -> str | None:
        """The path without its tail, if nothing in it is a placeholder: found by one look-up."""
        if any(segment.name for segment in self.segments):
            return None
        return "".join(f"/{segment.before}" for segment in self.segments)

    @property
    def shape(self) -> tuple[tuple[str, bool, str], ...]:
        """Equal for two patterns that match the same paths."""
        shape = tuple((segment.before, bool(segment.name), segment.after) for segment in self.segments)
        return (*shape, ("*", True, "*")) if self.tail else shape

    def matches(self, path: str) -> bool:
        """Whether a folded path fits. The router finds the same by look-ups; this says it for one route."""
        found = path.split("/")[1:]
        if len(found) < len(self.segments) or (len(found) > len(self.segments) and not self.tail):
            return False
        return all(takes(segment, text) for segment, text in zip(self.segments, found, strict=False))

    def values(self, send_path: str) -> dict[str, str]:
        """What the placeholders stand for in the path that is sent, of a request whose folded path matches."""
        found = [part for part in send_path.split("/") if part]
        values: dict[str, str] = {}
        for segment, text in zip(self.segments, found, strict=False):
            if segment.name:
                values[segment.name] = _inside(segment, text)
        if self.tail_name:
            values[self.tail_name] = after_segments(send_path, len(self.segments)).removeprefix("/")
        return values


def parse_pattern(text: str) -> Pattern:
    """The pattern that a route's ``path`` spells. Raises ValueError with what to write instead."""
    if not text.startswith("/"):
        raise ValueError(f"{text!r} is not a path; write /exact, /prefix/* or /users/{{id}}")
    written = text.split("/")[1:]
    tail = _TAIL.fullmatch(written[-1])
    if tail is not None:
        written.pop()
    if len(written) > MAX_SEGMENTS:
        raise ValueError(f"{text!r} has more than {MAX_SEGMENTS} segments")
    segments: list[Segment] = []
    for part in written:
        found = _SEGMENT.fullmatch(part)
        if found is None:
            raise ValueError(
                f"{text!r} is not a path; write /exact or /prefix/*, and placeholders like {{id}}, one in a segment, "
                "with {rest*} only at the end"
            )
        segments.append(Segment(found[1], found[2] or "", found[3] or ""))
    pattern = Pattern(text, tuple(segments), tail is not None, (tail[1] or "") if tail is not None else "")
    _check(pattern)
    return pattern


def takes(segment: Segment, text: str) -> bool:
    """Whether a segment of a folded path fits."""
    if not segment.name:
        return text == segment.before
    value = text[len(segment.before) : len(text) - len(segment.after)]
    return (
        len(text) > len(segment.before) + len(segment.after)
        and text.startswith(segment.before)
        and text.endswith(segment.after)
        and may_stand(value)
    )


def may_stand(value: str) -> bool:
    """Whether a placeholder may stand for this: something, no dots alone (a parameter does not count: ``..;x``), and no
    escape that is cut in two; the same for each part between escaped slashes."""
    if "%2F" in value and not all(part.partition(";")[0] not in ("", ".", "..") for part in value.split("%2F")):
        return False
    return value.partition(";")[0] not in ("", ".", "..") and "%" not in value[-2:]


def after_segments(path: str, num_segments: int) -> str:
    """What follows the first so many segments, from its slash on; empty segments do not count."""
    at = 0
    for _ in range(num_segments):
        while path.startswith("/", at):
            at += 1
        at = path.find("/", at)
        if at < 0:
            return ""
    return path[at:]


def _inside(segment: Segment, text: str) -> str:
    if not (segment.before or segment.after):
        return text
    units = _UNIT.findall(text)
    num_after = len(_UNIT.findall(segment.after))
    return "".join(units[len(_UNIT.findall(segment.before)) : len(units) - num_after])


def _check(pattern: Pattern) -> None:
    names = [segment.name for segment in pattern.segments if segment.name]
    names += [pattern.tail_name] if pattern.tail_name else []
    if len(set(names)) < len(names):
        raise ValueError(f"{pattern.text!r} has two placeholders of one name")
    if taken := RESERVED & set(names):
        raise ValueError(f"{pattern.text!r}: {{{min(taken)}}} is the request's own; choose another name")
    parts = [text for segment in pattern.segments for text in (segment.before, segment.after)]
    if not all(part.isascii() for part in parts):
        raise ValueError(
            f"{pattern.text!r} is matched as it comes, in ASCII; write other characters escaped, like %C3%A9"
        )
    # A segment of the length one cannot show what stands beside a placeholder: each text is judged by itself, too.
    sample = "/" + "/".join(f"{each.before}{'v' if each.name else ''}{each.after}" for each in pattern.segments)
    for each in (sample, *(f"/v{part}v" for part in parts)):
        try:
            match, _ = normalise(each)
        except BadPath as error:
            raise ValueError(f"{pattern.text!r} cannot match: {error}") from None
        if match != each:
            raise ValueError(f"{pattern.text!r} cannot match, because paths are compared in the form {match!r}")
