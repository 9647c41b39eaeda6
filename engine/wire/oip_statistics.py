"""The numbers of ``GET /v2/models/{name}/stats``: the tally of a batching lane in the words of Triton's statistics
extension. Pure.

As there, ``inference_count`` counts rows and ``execution_count`` runs, and requests that were answered or failed are
counted with their time from arrival on, so is what they waited for a run. Not as there, ``compute_infer`` counts each
run once, however many requests share it, and preparing tensors is not counted apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.batching.tally import Tally

_NOTHING: Mapping[str, int] = {"count": 0, "ns": 0}


def describe(name: str, version: str, tally: Tally, last_inference_ms: int) -> dict[str, Any]:
    """One element of ``model_stats``. last_inference_ms: milliseconds since the epoch; 0: never."""
    runs = _duration(tally.num_runs, tally.run_s)
    return {
        "name": name,
        "version": version,
        "last_inference": last_inference_ms,
        "inference_count": tally.num_rows,
        "execution_count": tally.num_runs,
        "inference_stats": {
            "success": _duration(tally.num_ok, tally.ok_s),
            "fail": _duration(tally.num_failed, tally.failed_s),
            "queue": _duration(tally.num_ok + tally.num_failed, tally.queue_s),
            **_computed(runs),
        },
        "batch_stats": [
            {"batch_size": rows, **_computed(_duration(each.count, each.seconds))}
            for rows, each in sorted(tally.by_rows.copy().items())
        ],
    }


def _computed(runs: Mapping[str, int]) -> dict[str, Mapping[str, int]]:
    return {"compute_input": _NOTHING, "compute_infer": runs, "compute_output": _NOTHING}


def _duration(count: int, seconds: float) -> dict[str, int]:
    return {"count": count, "ns": round(seconds * 1e9)}
