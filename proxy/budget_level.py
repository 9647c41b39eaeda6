"""One budget as a snapshot has it, over the memory that all workers share; and how a request stands to it.

A budget gives tokens or requests; one that gives both is two of these. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, tzinfo
from math import ceil, inf
from typing import TYPE_CHECKING, Final

from proxy.budget_windows import PERIOD_S, Period, Window, window_at
from proxy.exchange import Exchange
from proxy.fields import sf_item, sf_string
from proxy.named_limit import whole
from proxy.shared.budget import BudgetMemory

if TYPE_CHECKING:
    from proxy.cells import Counter
    from proxy.shared.record import Record

_JITTER: Final = 0.2
_MAX_JITTER_S: Final = 60.0
_DRAWN: Final = 65536
_NO_WINDOW: Final = Window(0.0, 0.0)
#: Whose a budget is, as a refusal says it.
WHOSE: Final = {"api_key": "this API key", "team": "its team", "tenant": "its tenant", "all": "all together"}


def holder(kind: str, key_id: str, tenant: str, team: str) -> str:
    """Who has a budget of this kind. What somebody does not have, a key or a tenant, is one more holder, so that nobody
    passes a budget by leaving something out."""
    if kind == "api_key":
        return key_id
    if kind == "tenant":
        return tenant
    return f"{tenant}/{team}" if kind == "team" and tenant else ""


class BudgetLevel:
    """name: as configured; unit: what it gives, "tokens" or "requests"; kind: to whom; amount: how much, where the keys
    file does not say otherwise. memory: what was used of it, under the name ``place``; begun: whether it is there."""

    __slots__ = ("_draw_hex", "_policy", "_policy_of", "_quoted", "_shared", "_window", "amount", "begun", "ietf",
                 "kind", "memory", "name", "per", "period_s", "place", "refused", "rolls", "says", "shown", "unit",
                 "zone")  # fmt: skip

    def __init__(
        self, name: str, unit: str, kind: str, amount: int, per: Period, zone: tzinfo | None, place: str,
        memory: BudgetMemory, begun: Record, refused: Counter, draw_hex: Callable[[int], str], ietf: bool = True,
    ) -> None:  # fmt: skip
        """zone: of the calendar; None: a rolling window."""
        self.name = name
        self.unit = unit
        self.kind = kind
        self.amount = amount
        self.per: Period = per
        self.zone = zone
        self.rolls = zone is None
        self.period_s = PERIOD_S[per]
        self.place = place
        self.memory = memory
        self.begun = begun
        self.refused = refused
        self.shown = name if unit == "requests" else f"{name}.{unit}"
        self.says: dict[str, int | str] = {} if unit == "requests" else {"qu": unit}
        self.ietf = ietf
        self._draw_hex = draw_hex
        self._shared = kind != "api_key"
        self._window = _NO_WINDOW
        self._quoted = sf_string(self.shown).encode()
        self._policy = b""
        self._policy_of = (-1, 0.0)  # (amount, begin of its window): most answers say what the one before said

    def key_of(self, x: Exchange) -> str:
        """What a request is counted under."""
        entry = x.key
        return holder(self.kind, x.key_id or "", *((entry.tenant, entry.team) if entry is not None else ("", "")))

    def amount_of(self, x: Exchange) -> int:
        """What is given to whom the request is from: the keys file may give a key another amount."""
        if self.kind == "api_key" and x.key is not None and x.key.budgets:
            return x.key.budget(self.name, self.unit) or self.amount
        return self.amount

    def window(self, wall: float) -> Window:
        """The window of the calendar; of a rolling one nothing."""
        if self.zone is None:
            return _NO_WINDOW
        window = self._window
        if not window.start <= wall < window.end:
            window = self._window = window_at(wall, self.per, self.zone)
        return window

    def policy_item(self, amount: int, window: Window) -> bytes:
        """The budget's item in RateLimit-Policy."""
        if self._policy_of != (amount, window.start):
            length_s = self.period_s if self.rolls else window.end - window.start
            self._policy = sf_item(self.shown, {"q": amount, "w": ceil(length_s), **self.says})
            self._policy_of = (amount, window.start)
        return self._policy

    def item(self, left: int, reset_s: float) -> bytes:
        """The budget's item in RateLimit."""
        return b"%b;r=%d;t=%d" % (self._quoted, left, whole(reset_s))

    def jittered(self, wait_s: float) -> float:
        """A wait that is told to a client: never shorter, and not the same for all that share the budget."""
        if not self._shared or wait_s == inf:
            return wait_s
        return wait_s + min(_MAX_JITTER_S, _JITTER * wait_s) * int(self._draw_hex(2), 16) / _DRAWN

    def when(self, window: Window) -> str:
        """Since when it counts what is used, in words."""
        if self.zone is None:
            return {"hour": "an hour", "day": "a day", "month": "30 days"}[self.per]
        return f"the {self.per} from {datetime.fromtimestamp(window.start, self.zone).isoformat()} on"


class Standing:
    """What one request's key has used of a budget when it was asked, with this request once it is taken.

    refuses: it did not fit. reset_s: until it fits, if it did not, else until the window ends, or nothing of a rolling
    one counts; inf: never. wall: when it was asked. All is asked between ``enter_all`` and ``leave_all`` of the level's
    memory."""

    __slots__ = ("_beginning", "amount", "cost", "key", "level", "refuses", "reset_s", "used", "wall", "window")

    def __init__(self, level: BudgetLevel, key: str, amount: int, cost: int, wall: float) -> None:
        self.level = level
        self.key = key
        self.amount = amount
        self.cost = cost
        self.wall = wall
        self._beginning = level.begun.version()
        self.window = window = level.window(wall)
        self.used = level.memory.used(key, wall, window.start)
        self.refuses = self.used + cost > amount
        self.reset_s = 0.0

    @property
    def left(self) -> int:
        """Never negative, even if more is used than is given."""
        return max(0, self.amount - self.used)

    @property
    def told_s(self) -> float:
        """``reset_s`` as RateLimit tells it: of a request that never fits until its window ends."""
        if self.reset_s < inf:
            return self.reset_s
        return self.level.period_s if self.level.rolls else self.window.end - self.wall

    def take(self) -> None:
        """Count the request."""
        self.used += self.cost
        self.level.memory.take(self.key, self.cost, self.wall, self.window.start)

    def settle(self, tokens: int) -> None:
        """The request has used so many tokens; one that has used none is no request either."""
        level = self.level
        used = tokens if level.unit == "tokens" else min(1, tokens)
        # A budget that went and came back meanwhile began with the record, which knows nothing of what was taken.
        taken = self.cost if level.begun.version() == self._beginning else 0
        if used != taken:
            level.memory.correct(self.key, used - taken, self.wall, self.window.start)

    def look_ahead(self) -> None:
        """Find ``reset_s``."""
        level = self.level
        if self.refuses and self.cost > self.amount:
            self.reset_s = inf
        elif level.rolls:
            excess = self.used + self.cost - self.amount if self.refuses else self.used
            self.reset_s = level.memory.wait_s(self.key, excess, self.wall, self.window.start) if excess > 0 else 0.0
        else:
            self.reset_s = self.window.end - self.wall
        if self.refuses:
            self.reset_s = level.jittered(self.reset_s)
