"""The addresses that a server's name stands for, in the order in which they are tried. Pure.

Each new connection begins with the next address, so that all get their share. One that could not be connected to, or
failed its check, is tried last until the name was asked for again or it has worked.
"""

from __future__ import annotations

from collections.abc import Iterable

#: Addresses of one name that are used; and those tried for one connection.
MAX_ADDRESSES = 64
MAX_TRIES = 3


class Addresses:
    """What is known of one name. all: empty until it was resolved; the last good answer afterwards."""

    __slots__ = ("_bad", "_next", "all")

    def __init__(self, known: Iterable[str] = ()) -> None:
        self.all: tuple[str, ...] = tuple(known)
        self._bad: frozenset[str] = frozenset()
        self._next = 0

    def replace(self, found: Iterable[str]) -> bool:
        """Take a new answer, which has at least one address. True: it differs from the last."""
        fresh = tuple(sorted(set(found)))[:MAX_ADDRESSES]
        differs = fresh != self.all
        self.all = fresh
        self._bad = frozenset()
        return differs

    def turn(self) -> list[str]:
        """The addresses for one new connection, in the order to try them."""
        count = len(self.all)
        if not count:
            return []
        at = self._next = (self._next + 1) % count
        turned = self.all[at:] + self.all[:at]
        if self._bad:
            turned = tuple(sorted(turned, key=self._bad.__contains__))
        return list(turned[:MAX_TRIES])

    def told(self, address: str, ok: bool) -> None:
        """An address could be connected to, or not."""
        if ok:
            if self._bad:
                self._bad -= {address}
        elif address in self.all:
            self._bad |= {address}
