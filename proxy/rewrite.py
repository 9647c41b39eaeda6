"""The request target that an upstream receives instead of the client's: prefixes, whole paths, the query. Pure.

Matching and sending stay one decision: a prefix is taken off only where the route's own path says that every request
begins with it, as many segments of the path that is sent as of the one that was matched, however they were spelt. What
is left of the client's path is sent byte by byte. Nothing here can fail or make a dot segment: whole segments are cut
off and put on, and a placeholder never stands for dots (``proxy.patterns``). What is made begins with one slash, so
that no reader takes its first segment for a host.
"""

from __future__ import annotations

from proxy.conditions import decoded
from proxy.config_match import QueryChanges, Rewrite
from proxy.exchange import Exchange
from proxy.paths import BadPath, normalise
from proxy.patterns import Pattern, after_segments, parse_pattern
from proxy.templates import Template, in_query


class Rewriter:
    """A route's rewrite, compiled. Raises ValueError if it does not fit the route's path."""

    __slots__ = ("_add", "_num_stripped", "_path", "_pattern", "_query", "_strip")

    def __init__(self, config: Rewrite, path: str) -> None:
        self._pattern = parse_pattern(path)
        self._strip = config.strip_prefix or ""
        self._num_stripped = _num_stripped(config.strip_prefix, self._pattern)
        self._add = config.add_prefix or ""
        self._path = _whole_path(config.path, self._pattern) if config.path is not None else None
        self._query = _Query(config.query, self._pattern) if config.query is not None else None

    def apply(self, x: Exchange) -> None:
        """Change what will be sent of a request that this route took; once for each."""
        sent, values = x.send_path, None
        if self._path is not None:
            values = self._pattern.values(sent)
            x.send_path = one_slash(self._path.render(values))
        elif self._num_stripped or self._add:
            x.send_path = one_slash(self._add + self._stripped(sent))
        if self._query is not None:
            x.query = self._query.changed(x.query, self._pattern.values(sent) if values is None else values)

    def _stripped(self, path: str) -> str:
        size = len(self._strip)
        if path.startswith(self._strip) and (len(path) == size or path[size] == "/"):
            return path[size:]
        return after_segments(path, self._num_stripped)


class _Query:
    """Changes of a query: the parameters that stay keep their bytes and their order."""

    __slots__ = ("_drop", "_set")

    def __init__(self, config: QueryChanges, pattern: Pattern) -> None:
        self._drop = frozenset(name.encode() for name in (*config.set, *config.remove))
        self._set = [
            (in_query(name), Template(in_query(text).replace("%7B", "{").replace("%7D", "}"), pattern.names))
            for name, text in config.set.items()
        ]

    def changed(self, query: str, values: dict[str, str]) -> str:
        pairs = query.split("&") if query else []
        pairs = [pair for pair in pairs if decoded(pair.partition("=")[0]) not in self._drop]
        pairs += [f"{name}={template.render_query(values)}" for name, template in self._set]
        return "&".join(pairs)


def request_target(x: Exchange) -> str:
    """The target as it is sent: path and query; a question mark that the client wrote stays, also before nothing."""
    return f"{x.send_path}?{x.query}" if x.query or "?" in x.target else x.send_path


def one_slash(path: str) -> str:
    """The path with exactly one slash at its beginning."""
    return path if path[:1] == "/" and path[1:2] != "/" else "/" + path.lstrip("/")


def _num_stripped(prefix: str | None, pattern: Pattern) -> int:
    if prefix is None:
        return 0
    segments = parse_pattern(prefix).segments
    if pattern.segments[: len(segments)] != segments:
        raise ValueError(f"strip_prefix: not every path of this route begins with {prefix}; its path is {pattern.text}")
    return len(segments)


def _whole_path(text: str, pattern: Pattern) -> Template:
    template = Template(text, pattern.names)
    sample = template.render(dict.fromkeys(template.names, "v"))
    try:
        is_normal = normalise(sample) == (sample, sample)
    except BadPath as error:
        raise ValueError(f"path: {text!r} cannot be sent: {error}") from None
    if not is_normal:
        raise ValueError(f"path: {text!r} cannot be sent: write it without dot segments, // and needless escapes")
    rest = pattern.tail_name
    if rest in template.names and (rest in Template(text.rpartition("/")[0], pattern.names).names or not _ends(text)):
        raise ValueError(f"path: {{{rest}}} can be many segments; it must be the last one, alone behind a slash")
    return template


def _ends(text: str) -> bool:
    last = text.rpartition("/")[2]
    return last.startswith("{") and last.endswith("}") and last.count("{") == 1
