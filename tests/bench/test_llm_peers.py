"""Fidelity against a plain softmax, the conversation with a peer in its process, and who is the best peer."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from bench.fidelity import Fidelity, compare
from bench.llm import best_peer
from bench.peer_process import PeerProcess
from bench.rounds import tabulate
from bench.sse_client import Stream

PEER = """
import sys
sys.path.insert(0, {root!r})
from bench.peer_process import serve

class Peer:
    def __init__(self, weights):
        print("libraries talk")
        self.versions = {{"weights": weights}}

    def decode(self, prompt, num_streams, num_tokens):
        print("even here")
        return sum(prompt) * num_streams * num_tokens

    def fail(self):
        raise ValueError("out of luck")

serve(Peer)
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    file = tmp_path / "peer.py"
    file.write_text(PEER.format(root=str(Path(__file__).parents[2])))
    return str(file)


def test_a_peer_answers_over_its_pipe_whatever_its_libraries_print(script: str) -> None:
    peer = PeerProcess(script, "some.gguf", python=sys.executable)
    assert peer.versions == {"weights": "some.gguf"}
    assert peer.ask("decode", prompt=[1, 2], num_streams=2, num_tokens=5) == 30
    assert peer.ask("decode", prompt=[1], num_streams=1, num_tokens=1) == 1
    peer.close()


def test_a_peer_that_ends_says_why(script: str) -> None:
    peer = PeerProcess(script, "some.gguf", python=sys.executable)
    with pytest.raises(RuntimeError, match="out of luck"):
        peer.ask("fail")
    peer.close()


def test_fidelity_is_the_mean_divergence_and_the_share_of_equal_best_tokens() -> None:
    generator = np.random.default_rng(0)
    true = generator.normal(size=(5, 50)).astype(np.float32) * 3
    assert compare(true, true + 7) == pytest.approx((0, 1), abs=1e-6)  # logits are known up to a constant
    seen = true.copy()
    seen[0] = -seen[0]
    p, q = (np.exp(row.astype(float)) / np.exp(row.astype(float)).sum() for row in (true[0], seen[0]))
    assert compare(true, seen) == pytest.approx(((p * np.log(p / q)).sum() / 5, 0.8))


def test_the_best_peer_is_the_fastest_that_is_as_faithful() -> None:
    rows = [
        {"who": "engine alone", "1": 90.0, "kl": 0.003},
        {"who": "llama.cpp", "1": 80.0, "kl": 0.012},
        {"who": "genai, int8", "1": 70.0, "kl": 0.001},
        {"who": "genai, int4", "1": 300.0, "kl": 0.4},
    ]
    assert best_peer(rows, "1", Fidelity(0.003, 0.96)) == 80.0
    assert best_peer(rows, "1", Fidelity(0.001, 0.96)) == 70.0
    assert best_peer(rows[:1], "1", Fidelity(0.003, 0.96)) is None
    assert best_peer(rows, "1", None) is None


def test_a_table_holds_medians_taken_figure_by_figure_in_turn() -> None:
    order: list[str] = []

    def measure(name: str) -> float:
        order.append(name)
        return float(len(order))

    rows = tabulate(
        {"a": {"x": lambda: measure("ax"), "y": lambda: measure("ay")}, "b": {"x": lambda: measure("bx")}}, 3
    )
    assert order == ["ax", "bx", "ay"] * 3
    assert rows == [{"peer": "a", "x": 4.0, "y": 6.0}, {"peer": "b", "x": 5.0, "y": None}]


def test_a_streams_time_per_token_counts_events_that_carry_several() -> None:
    stream = Stream(asked_at=0.0, token_at=[1.0, 2.0, 3.0], usage={"completion_tokens": 6})
    assert stream.first_token_s == 1.0
    assert stream.token_s == 0.5
