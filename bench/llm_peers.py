"""The peers of the language model: each in an environment of its own, on the same weights.

Owns which there are and where they lie; ``bench/llm_peers.sh`` makes them. Knows nothing of what is measured.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from bench.peer_process import PEERS, PeerProcess, environment


class Peer(Protocol):
    """Something that decodes: the methods of bench/peer_*.py."""

    versions: dict[str, str]

    def decode(self, prompt: Sequence[int], num_streams: int, num_tokens: int) -> float: ...

    def prefill(self, prompt: Sequence[int]) -> float: ...

    def logits(self, tokens: Sequence[int]) -> NDArray[np.float32]: ...


class Kind(NamedTuple):
    """A peer that may be there: its environment, its program, and its weights' name under ``PEERS/weights``."""

    environment: str
    script: str
    weights: str

    def load(self, threads: int) -> RemotePeer:
        """Loads it. Raises RuntimeError where it cannot be."""
        return RemotePeer(self, threads=threads)


KINDS: Mapping[str, Kind] = {
    "llama.cpp": Kind("llama-cpp", "peer_llama_cpp.py", "gguf/model.gguf"),
    "genai, int8": Kind("genai", "peer_genai.py", "genai-int8"),
    "genai, int4": Kind("genai", "peer_genai.py", "genai-int4"),
    "OpenVINO, GGUF": Kind("openvino", "peer_openvino.py", "openvino-gguf/model.gguf"),
    "OpenVINO, int8": Kind("openvino", "peer_openvino.py", "openvino-int8"),
}
REFERENCE = Kind("torch", "peer_transformers.py", "float32")


class RemotePeer:
    """A peer in its process."""

    def __init__(self, kind: Kind, *, threads: int) -> None:
        weights = str(PEERS / "weights" / kind.weights)
        self._process = PeerProcess(kind.script, weights, str(threads), python=str(environment(kind.environment)))
        self.versions = self._process.versions
        self.pid = self._process.pid

    def decode(self, prompt: Sequence[int], num_streams: int, num_tokens: int) -> float:
        """Seconds for ``num_tokens`` of each of ``num_streams`` equal sequences, after their prompts are in."""
        return float(self._process.ask("decode", prompt=prompt, num_streams=num_streams, num_tokens=num_tokens))

    def prefill(self, prompt: Sequence[int]) -> float:
        """Seconds from a prompt to the token after it."""
        return float(self._process.ask("prefill", prompt=prompt))

    def logits(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """The logits after each of ``tokens``: [len(tokens), V]."""
        with tempfile.NamedTemporaryFile(suffix=".npy") as file:
            self._process.ask("logits", tokens=tokens, file=file.name)
            logits: NDArray[np.float32] = np.load(file.name)
        return logits

    def close(self) -> None:
        """Ends the process."""
        self._process.close()


def available(kinds: Mapping[str, Kind]) -> tuple[dict[str, Kind], list[str]]:
    """Those of ``kinds`` that are there, and a note on each that is not."""
    here = {
        name: kind
        for name, kind in kinds.items()
        if environment(kind.environment).exists() and (PEERS / "weights" / kind.weights).exists()
    }
    missing = [name for name in kinds if name not in here]
    return here, [f"{name} is left out: bench/llm_peers.sh makes its environment and weights" for name in missing]


@contextmanager
def loaded(kinds: Mapping[str, Kind], *, threads: int) -> Iterator[tuple[dict[str, RemotePeer], list[str]]]:
    """Those of ``kinds`` that are there, loaded, and a note on each that is not."""
    here, notes = available(kinds)
    with ExitStack() as stack:
        peers = {name: stack.enter_context(closing(kind.load(threads))) for name, kind in here.items()}
        yield peers, notes
