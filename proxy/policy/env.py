"""What a policy is built with, and how its state outlives the snapshot it belongs to. Pure."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from proxy.cells import Cells
from proxy.chain import Policy
from proxy.config import Limit, Materials, Table
from proxy.engine_load import EngineLoad
from proxy.shared.table import SharedTable

if TYPE_CHECKING:
    from proxy.budget_level import BudgetLevel
    from proxy.llm.encodings import TextCounter
    from proxy.model_routes import ModelRoutes
    from proxy.usage_log import UsageLog

T = TypeVar("T")

#: Takes what has changed by itself and somebody may have to know of, as plain JSON values: ``kind``, ``text`` (the line
#: that the log has) and the facts of it. Bounded, and never blocking.
Notify = Callable[[dict[str, Any]], None]


class States:
    """Live state of this worker by name (breakers, pools), carried from one snapshot's build to the next.

    A build works on ``States(previous)``: what it asks for is taken over or made new, and nothing of ``previous``
    changes, so a build that fails leaves no trace. ``seal`` at commit lets go of what the new snapshot did not ask for.
    """

    def __init__(self, previous: States | None = None) -> None:
        self._previous = previous
        self._kept: dict[Hashable, Any] = {}

    def get(self, key: Hashable, factory: Callable[[], T]) -> T:
        """The state under ``key``, e.g. ("limit", "per-key"); made by ``factory`` if there is none yet."""
        kept = self._kept
        if key not in kept:
            previous = self._previous
            kept[key] = previous._kept[key] if previous is not None and key in previous._kept else factory()
        found: T = kept[key]
        return found

    def of(self, kind: type[T]) -> list[T]:
        """All of this kind that were asked for."""
        return [state for state in self._kept.values() if isinstance(state, kind)]

    def seal(self) -> None:
        """Forget the previous states: this is the one in use now."""
        self._previous = None


@dataclass(frozen=True, slots=True)
class PolicyEnv:
    """A policy's surroundings, the same for all policies of a route.

    route: the route's name. emit: takes one access-log line without its newline, bounded and never blocking;
    None: nobody reads any.
    draw_hex: that many random bytes as hexadecimal digits. shared: what all workers know together. beside: the route's
    whole ``policies:`` table, for policies that behave otherwise beside others. contexts: tokens that models take, by
    the names that requests of the route call them; counters: their tokenizers, where they are known here. by_model:
    what makes the policy of a route by models. budgets: those of the box. usage_log: takes what requests have used;
    None: nobody keeps it.
    """

    route: str
    limits: Mapping[str, Limit]
    materials: Materials
    states: States
    cells: Cells
    emit: Callable[[bytes], None] | None
    draw_hex: Callable[[int], str] = token_hex
    shared: SharedTable = field(default_factory=SharedTable.alone)
    beside: Table | None = None
    contexts: Mapping[str, int] = field(default_factory=dict)
    counters: Mapping[str, TextCounter] = field(default_factory=dict)
    by_model: Callable[[PolicyEnv], Policy] | None = None
    models: ModelRoutes | None = None  # of a route by models
    api: str = "none"  # the shape of the route's errors, which says whose answers it has
    engine_load: EngineLoad | None = None  # of a route that may go to the local engine
    engine_alone: bool = True  # and to no other upstream
    notify: Notify | None = None  # None: nobody listens
    budgets: tuple[BudgetLevel, ...] = ()
    usage_log: UsageLog | None = None


class PolicyModule(Protocol):
    """What a file in ``proxy/policy`` brings."""

    NAME: str  # the key under ``policies:``
    ALWAYS: bool  # on without being named; its Config has only defaults

    @property
    def Config(self) -> Any:
        """The type of its YAML: a Table or a list of names."""

    def build(self, config: Any, env: PolicyEnv) -> Policy:
        """The policy of one route. Raises ValueError on material that cannot be used, naming it."""
