"""Whether a graph runs, and whether rows that run together come out as they do alone: found by running it.

`python -m engine.importers.trial GRAPH` does it in a process of its own, bounded in memory and time, since nobody
vouches for the graph: it may crash the runtime or ask for more memory than there is. The facts of the graph come on
standard input, the verdict goes to standard output, both as JSON.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.manifest import ModelError
from engine.tensor_facts import TensorModelFacts
from engine.tensors.datatypes import DTYPES
from engine.tensors.forms import TRIED_LENGTHS, Form, form_of, has_free_axes

_TIME_S = 300
_MEMORY_FACTOR = 8  # of the weights, for what is computed from them
_MEMORY_BYTES = 8 << 30  # beside them: mostly address space that is never touched

#: Whole numbers from, to below: there are tables of two entries, and lengths that must not be 0. Wide ones come first:
#: what rows of zeros and ones give may hang on the last bit of a difference.
_WHOLE = ((0, 128), (0, 2), (1, 3))

Arrays = dict[str, NDArray[Any]]
Run = Callable[[Arrays], Mapping[str, NDArray[Any]]]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a trial."""

    example: Form | None  # a row that the graph runs; None: it ran none that was tried
    problem: str | None  # why it does not run, or why its rows must not share a run; None: all is well


def try_rows(run: Run, facts: TensorModelFacts) -> Verdict:
    """Run single rows of random numbers, then two and three of them together. Of a graph that is not batched: one."""
    problem = "it cannot be run"
    for free in TRIED_LENGTHS if has_free_axes(facts) else TRIED_LENGTHS[:1]:
        form = form_of(facts, free)
        for whole in _WHOLE:
            generator = np.random.default_rng(0)
            rows = [_random(facts, form, generator, whole) for _ in range(3)]
            try:
                alone = [run(row) for row in rows]
            except Exception as error:  # the runtime's exceptions share no class but Exception
                problem = f"it cannot be run ({error})"
                continue
            if not facts.batched:
                return Verdict(form, None)
            return Verdict(form, _compare(run, rows, alone))
    return Verdict(None, problem)


def try_graph(graph: Path, facts: TensorModelFacts, weights_bytes: int) -> Verdict:
    """``try_rows`` with a graph, in another process. Raises ModelError when that process does not end by itself."""
    command = [sys.executable, "-m", "engine.importers.trial", str(graph), str(weights_bytes)]
    try:
        done = subprocess.run(command, input=facts.model_dump_json(), capture_output=True, text=True, timeout=_TIME_S)
    except subprocess.TimeoutExpired:
        raise ModelError(
            f"{graph.name}: a run of single rows was not done within {_TIME_S} s; it is too slow"
        ) from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise ModelError(f"{graph.name}: running it ended the process that tried it ({last}); export the model again")
    verdict = json.loads(done.stdout)
    example = verdict["example"]
    form = None if example is None else {name: tuple(lengths) for name, lengths in example.items()}
    return Verdict(form, verdict["problem"])


def main() -> None:
    """The process that tries a graph."""
    graph, weights_bytes = Path(sys.argv[1]), int(sys.argv[2])
    limit = _MEMORY_BYTES + _MEMORY_FACTOR * weights_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    facts = TensorModelFacts.model_validate_json(sys.stdin.read())
    print(json.dumps(asdict(_try_file(graph, facts))))


def _try_file(graph: Path, facts: TensorModelFacts) -> Verdict:
    from engine.session import open_session

    try:
        session = open_session(graph, threads=0)
    except ModelError as error:
        return Verdict(None, str(error))
    outputs = [tensor.name for tensor in session.get_outputs()]
    return try_rows(lambda feeds: dict(zip(outputs, session.run(outputs, feeds), strict=True)), facts)


def _random(facts: TensorModelFacts, form: Form, generator: np.random.Generator, whole: tuple[int, int]) -> Arrays:
    """One row of each input, or the whole input of a graph that is not batched."""
    arrays: Arrays = {}
    for tensor in facts.inputs:
        shape = (1, *form[tensor.name]) if facts.batched else form[tensor.name]
        dtype = DTYPES[tensor.datatype]
        if tensor.datatype.startswith("FP"):
            arrays[tensor.name] = generator.random(shape).astype(dtype)
        elif tensor.datatype == "BYTES":
            arrays[tensor.name] = generator.choice(np.array(["a", "b c"], object), shape)
        else:
            arrays[tensor.name] = generator.integers(*whole, shape).astype(dtype)
    return arrays


def _compare(run: Run, rows: Sequence[Arrays], alone: Sequence[Mapping[str, NDArray[Any]]]) -> str | None:
    """How rows come out differently together; None: they do not."""
    for count in (2, 3):
        try:
            together = run({name: np.concatenate([row[name] for row in rows[:count]]) for name in rows[0]})
        except Exception as error:
            return f"it takes one row and not {count} ({error})"
        for name, array in together.items():
            if array.shape[:1] != (count,) or any(len(outputs[name]) != 1 for outputs in alone):
                return f"its output {name!r} has the shape {list(array.shape)} for {count} rows"
            for index in range(count):
                if why := _differs(array[index], alone[index][name][0]):
                    return f"its output {name!r} {why}"
    return None


def _differs(together: NDArray[Any], alone: NDArray[Any]) -> str | None:
    if together.shape != alone.shape:
        return "has another shape beside other rows than alone"
    if together.dtype.kind != "f":
        return None if np.array_equal(together, alone) else "differs beside other rows"
    if np.isnan(alone).all():
        return "is not a number for random inputs, so nothing can be compared"
    scale = np.nanmax(np.abs(alone[np.isfinite(alone)]), initial=0.0) if np.isfinite(alone).any() else 0.0
    tolerance = (1e-2 if together.dtype == np.float16 else 1e-3) * scale + 1e-6
    close = np.isclose(together.astype(np.float64), alone.astype(np.float64), rtol=0, atol=tolerance, equal_nan=True)
    return None if close.all() else "differs beside other rows"


if __name__ == "__main__":
    main()
