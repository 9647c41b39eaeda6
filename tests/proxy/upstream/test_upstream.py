"""The local engine as an upstream: what it has of its own."""

from __future__ import annotations

from proxy.config import Breaker as BreakerConfig
from proxy.config import Defaults, Timeouts
from proxy.policy import States
from proxy.upstream.breaker import Breaker
from proxy.upstream.servers import ServerEnv
from proxy.upstream.upstream import build_engine


def test_a_long_answer_of_the_engine_is_waited_for() -> None:
    """An answer that is not streamed may take minutes to its first byte, which is also its last."""
    engine = build_engine("/run/engine.sock", Defaults(), ServerEnv(States()), Breaker(BreakerConfig()))
    assert engine.timeouts.first_byte == 600.0
    assert engine.timeouts.connect == 60.0  # its successor may have to load models
    assert engine.timeouts.idle == Defaults().timeouts.idle


def test_a_longer_default_holds_for_the_engine_too() -> None:
    defaults = Defaults(timeouts=Timeouts.model_construct(first_byte=900.0, connect=10.0, idle=60.0, total=None))
    assert (
        build_engine("/run/engine.sock", defaults, ServerEnv(States()), Breaker(BreakerConfig())).timeouts.first_byte
        == 900.0
    )
