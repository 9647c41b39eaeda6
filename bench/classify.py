"""Pictures to classes over HTTP: Headrace beside servers that batch and one that does not, in one run.

    python bench/classify.py [--quick] [--json FILE]

JPEGs of 640 x 480 pixels, one a request, the file as its body. Each server first classifies all of them, and must come
to what Headrace does; then it is asked by one client and by 32, each sending its next picture when it has its answer.
"""

from __future__ import annotations

import http.client
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

if __name__ == "__main__":  # run as a file, this directory stands first, and `import proxy` would find bench/proxy.py
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import numpy as np
import orjson

from bench import batching_peers, peers, serving, unfused
from bench.pictures import photographs
from bench.posts import post, render
from bench.report import Report, Row, arguments, ratio, versions
from bench.rounds import Figures, interleave, repeated
from engine import model_folder

WIDTH, HEIGHT, NUM_PICTURES = 640, 480, 16
CLIENTS = 32
TOLERANCE = 0.001  # of a score: decoders may round differently
PATH = f"/v1/classify?model={serving.CLASSIFIER}"


class Class(NamedTuple):
    """The best class of a picture."""

    label: str
    score: float


@contextmanager
def appliance() -> Iterator[int]:
    """The whole of Headrace without TLS, as the peers are."""
    with serving.appliance(serving.CLASSIFIER, tls=False) as (server, _):
        yield server.port


def classes(port: int, pictures: Sequence[bytes]) -> list[Class]:
    """What a server says of each."""
    connection, found = http.client.HTTPConnection("127.0.0.1", port, timeout=60), []
    for picture in pictures:
        connection.request("POST", PATH, picture, {"Content-Type": "image/jpeg"})
        best = orjson.loads(connection.getresponse().read())["data"][0]
        found.append(Class(best["label"], best["score"]))
    connection.close()
    return found


def difference(found: Sequence[Class], expected: Sequence[Class]) -> float:
    """The largest of their scores. Raises SystemExit when it is more than TOLERANCE, or a label is another."""
    for index, (here, there) in enumerate(zip(found, expected, strict=True)):
        if here.label != there.label or not abs(here.score - there.score) <= TOLERANCE:
            raise SystemExit(f"picture {index}: {here} where Headrace says {there}: what they do is not the same")
    return max(abs(here.score - there.score) for here, there in zip(found, expected, strict=True))


def served(
    serve: Callable[[], AbstractContextManager[int]],
    pictures: Sequence[bytes],
    expected: Sequence[Class],
    clients: int,
    seconds: float,
) -> Figures:
    """One round with one server: {per_s, p99_ms} of many clients, {one_p50_ms} of one."""
    requests = [render(PATH, picture, content_type="image/jpeg") for picture in pictures]
    with serve() as port:
        largest = difference(classes(port, pictures), expected)
        one = post(port, requests, connections=1, seconds=seconds / 2)
        many = post(port, requests, connections=clients, seconds=seconds)
    return {
        "per_s": many["requests_per_s"],
        "p99_ms": many["ms"]["p99"],
        "one_p50_ms": one["ms"]["p50"],
        "score_off": largest,
    }


def bare(folder: Path, pictures: Sequence[bytes], num_rows: int, seconds: float) -> Figures:
    """Of a loop that runs ``num_rows`` decoded pictures at a time, on all cores."""
    graph, rows = unfused.session(folder, serving.num_cores()), [unfused.preprocess(each) for each in pictures]
    feeds = {graph.get_inputs()[0].name: np.stack([rows[index % len(rows)] for index in range(num_rows)])}
    return repeated(partial(graph.run, None, feeds), num_rows, seconds)


def main() -> None:
    options = arguments(__doc__)
    num_rounds, seconds = options.rounds or options.pick(5, 1, 1), options.pick(10.0, 6.0, 4.0)
    clients = options.pick(CLIENTS, CLIENTS, 2)
    folder, cores = model_folder.read(serving.model_folder(serving.CLASSIFIER)), serving.num_cores()
    max_batch = folder.manifest.batching.max_batch or batching_peers.MAX_BATCH
    pictures = photographs(options.pick(NUM_PICTURES, NUM_PICTURES, 2), width=WIDTH, height=HEIGHT)
    known = batching_peers.peers(cores, max_batch=max_batch, unbatched_threads=1)
    present = {name: peer for name, peer in known.items() if peer.exists}
    request = render(PATH, pictures[0], content_type="image/jpeg")
    servers: Mapping[str, Callable[[], AbstractContextManager[int]]] = {
        "Headrace": appliance,
        **{name: partial(batching_peers.running, peer, folder.path, request) for name, peer in present.items()},
    }
    with appliance() as port:
        expected = classes(port, pictures)
    measures: dict[str, Callable[[], Figures]] = {
        name: partial(served, serve, pictures, expected, clients, seconds) for name, serve in servers.items()
    }
    measures |= {
        f"bare loop, {num_rows} rows": partial(bare, folder.path, pictures, num_rows, seconds / 3)
        for num_rows in (1, max_batch)
    }
    rows = interleave(measures, num_rounds, label="who")
    mean_kb = sum(map(len, pictures)) / len(pictures) / 1000
    Report(
        name="classify",
        method=(
            f"{serving.CLASSIFIER}, float32, {len(pictures)} JPEGs of {WIDTH} x {HEIGHT} pixels and {mean_kb:.0f} kB,"
            f" one a request, HTTP without TLS; per_s and p99_ms: {clients} clients in a closed loop for {seconds:g} s;"
            " one_p50_ms: one client, or a run of the bare loop, which decodes nothing; score_off: the largest"
            f" difference to Headrace's score, at most {TOLERANCE:g}; {num_rounds} rounds in turn, medians; clients,"
            f" servers and models share {cores} cores; peers decode by Pillow, and those that batch run up to"
            f" {max_batch} pictures, wait {batching_peers.WAIT_MS} ms and have a worker of one thread per core; the one"
            " that does not has one thread in each run"
        ),
        versions={
            **versions("headrace", "onnxruntime", "numpy", "simplejpeg", "pillow"),
            "request path": "compiled" if peers.is_compiled() else "interpreted",
            **{peer.environment: peer.version() for peer in present.values()},
        },
        rows=rows,
        ratios=ratios(rows),
        notes=[f"{name} is not there and left out: {batching_peers.MAKE}" for name in known if name not in present],
    ).finish(options.json)


def ratios(rows: Sequence[Row]) -> dict[str, float | None]:
    """What acceptance is judged by, from the rows of a run; None where a peer was not there."""
    of = {str(row["who"]): row for row in rows}
    ours = of["Headrace"]
    loops = [row["per_s"] for name, row in of.items() if name.startswith("bare loop")]
    others = [row["per_s"] for name, row in of.items() if name != "Headrace" and not name.startswith("bare loop")]
    return {
        "classify_vs_best_peer": ratio(ours["per_s"], max(others, default=None)),
        "classify_vs_unbatched": ratio(ours["per_s"], of.get("FastAPI, unbatched", {}).get("per_s")),
        "classify_vs_bare": ratio(ours["per_s"], max(loops)),
        "classify_one_p50_ms": ours["one_p50_ms"],
    }


if __name__ == "__main__":
    main()
