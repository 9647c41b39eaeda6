"""What may stand between an answer and its client: it sees every byte, and passes on, holds, adds or takes. Pure.

A policy adds its filter in ``admit``. The policy that was asked last filters first, as ``respond`` runs: who comes
earlier in the list sees what the client gets. Filters see what an upstream answers, never what is answered here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mypy_extensions import mypyc_attr

if TYPE_CHECKING:
    from proxy.exchange import Exchange, Head


@mypyc_attr(allow_interpreted_subclasses=True)
class AnswerFilter:
    """One exchange's. Each hook by itself changes nothing.

    ``head`` may come again after ``broken``: an attempt failed before the client had a byte, and another one answers.
    """

    def head(self, x: Exchange, head: Head) -> None:
        """The answer begins; policies have responded. A filter that may change the size sets ``head.content_length`` to
        None."""

    def data(self, data: bytes) -> bytes:
        """What goes on, now, of these bytes and of those held before."""
        return data

    def faulted(self) -> None:
        """The answer that ends is none: its stream says that it failed, or has no content. Told before ``end``."""

    def end(self) -> bytes:
        """The answer is complete: what is still to be sent."""
        return b""

    def broken(self) -> None:
        """The answer will not be complete: the upstream broke off, or the client left. What is held is not sent."""


def add_filter(x: Exchange, answer_filter: AnswerFilter) -> None:
    """Put a filter before those of the policies that were asked earlier."""
    x.filters = [answer_filter, *(x.filters or ())]


def pass_through(filters: list[AnswerFilter], data: bytes) -> bytes:
    """What comes out of all filters when these bytes go in."""
    for each in filters:
        if not data:
            break
        data = each.data(data)
    return data


def finish(filters: list[AnswerFilter], failed: bool = False) -> bytes:
    """What comes out of all filters at the end: what one gives goes through those behind it. failed: the answer
    is none."""
    if failed:
        for each in filters:
            each.faulted()
    rest = b""
    for each in filters:
        rest = (each.data(rest) if rest else b"") + each.end()
    return rest
