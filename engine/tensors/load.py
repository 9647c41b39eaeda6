"""A tensor model from its folder: sessions opened, held against the manifest, and warmed up for every size of batch.

Blocking; whatever is wrong with the folder is a ModelError that says what to correct.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine import session
from engine.adapters.loading import load_adapters
from engine.manifest import ClassifyFacts
from engine.model_folder import GRAPH, MANIFEST, ModelError, ModelFolder
from engine.settings import ModelSettings
from engine.tensor_facts import TensorModelFacts
from engine.tensors.beside import try_beside
from engine.tensors.datatypes import DTYPES
from engine.tensors.forms import TRIED_LENGTHS, Form, batch_sizes, form_of, forms, has_free_axes
from engine.tensors.graph_facts import check_graph
from engine.tensors.model import TensorModel, batching_of
from engine.tensors.runnable import Feeds, GraphRunnable

_MOST_LABELS_BYTES = 16 << 20
_log = logging.getLogger(__name__)


def load_tensor_model(folder: ModelFolder, settings: ModelSettings, *, threads: int) -> TensorModel:
    """Load a model and run it for every size of batch. threads: of all its instances together; 0: one per usable
    core. Raises ModelError."""
    facts, manifest = folder.tensors, folder.manifest
    num_instances = manifest.num_instances(settings.instances)
    each = max(1, (threads or len(os.sched_getaffinity(0))) // num_instances)
    fused, extra = _fuse(folder)
    sessions = [
        session.open_session(folder.file(GRAPH), threads=each, placement=settings.placement, instead=fused)
        for _ in range(num_instances)
    ]
    inputs = [tensor for tensor in sessions[0].get_inputs() if tensor.name not in extra]
    check_graph("input", facts.inputs, inputs, all_needed=True)
    check_graph("output", facts.outputs, sessions[0].get_outputs(), all_needed=False)
    adapters, labels = load_adapters(folder), read_labels(folder, manifest.classify)
    runnable = GraphRunnable(sessions, batched=facts.batched)
    try:
        row = _warm(runnable, folder, batching_of(folder, settings).max_batch or 1, extra)
        if row is not None and num_instances == 1:
            runnable.width = try_beside(partial(runnable.run_beside, [row]), session.num_beside(sessions[0], each))
        return TensorModel(
            folder,
            settings,
            runnable,
            plain_feeds=extra,
            adapters=adapters,
            labels=labels,
            created=int(datetime.fromisoformat(manifest.created).timestamp()),
        )
    except BaseException:
        runnable.close()
        raise


def read_labels(folder: ModelFolder, classify: ClassifyFacts | None) -> tuple[str, ...]:
    """The names of the classes, in order; () when there are none. Raises ModelError."""
    labels = classify.labels if classify is not None else ()
    if not isinstance(labels, str):
        return labels
    path = folder.path / labels
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_LABELS_BYTES + 1)
        if len(text) > _MOST_LABELS_BYTES:
            raise ModelError(f"{path}: is larger than {_MOST_LABELS_BYTES >> 20} MiB; no list of labels is")
        return tuple(text.decode().splitlines())
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror}; correct classify.labels in {MANIFEST}") from error
    except UnicodeDecodeError as error:
        raise ModelError(f"{path}: is not UTF-8 ({error}); write one label on each line") from error


def find_example(runnable: GraphRunnable, facts: TensorModelFacts, extra: Mapping[str, NDArray[Any]]) -> Form | None:
    """A row that the graph runs: all free axes of one length. None: it runs none of those that are tried."""
    for free in TRIED_LENGTHS if has_free_axes(facts) else TRIED_LENGTHS[:1]:
        form = form_of(facts, free)
        try:
            runnable.run([{**zeros(facts, form, 1), **extra}])
        except Exception as error:  # the runtime's exceptions share no class but Exception
            reason = error
            continue
        return form
    if has_free_axes(facts):
        return None
    raise ModelError(f"the graph cannot run ({reason}); import the model again") from reason


def zeros(facts: TensorModelFacts, form: Form, rows: int) -> Feeds:
    """Inputs of that form; text is empty."""
    return {
        tensor.name: np.full(
            (rows, *form[tensor.name]) if facts.batched else form[tensor.name],
            "" if tensor.datatype == "BYTES" else 0,
            DTYPES[tensor.datatype],
        )
        for tensor in facts.inputs
    }


def _fuse(folder: ModelFolder) -> tuple[bytes | None, Feeds]:
    """The graph with what the manifest's adapter and classify ask for inside, or None when they ask for nothing; and
    what a request that brings tensors feeds to it beside them. Raises ModelError."""
    manifest, graph = folder.manifest, folder.file(GRAPH)
    if manifest.classify is None and (manifest.adapter is None or manifest.adapter.image is None):
        return None, {}
    import onnx  # 0.2 s, which the other models need not wait for

    from engine.folding import fold_subtractions
    from engine.fusion import empty_feeds, fuse

    try:
        fused = fuse(onnx.load(str(graph), load_external_data=False), manifest)
        fold_subtractions(fused)
    except Exception as error:  # ValueError, or what protobuf raises, which shares no class but Exception
        raise ModelError(f"{graph}: {error}; correct adapter and classify in {MANIFEST}") from error
    return fused.SerializeToString(), empty_feeds(manifest)


def _warm(runnable: GraphRunnable, folder: ModelFolder, max_batch: int, extra: Feeds) -> Feeds | None:
    """Run what requests will bring. A row of it; None: nobody knows what they will."""
    facts = folder.tensors
    example = dict(facts.example) or find_example(runnable, facts, extra)
    if example is None:
        _log.warning("%s: its free axes take no length that was tried; the first requests warm it up", folder.path)
        return None
    for form in forms(folder.manifest, example):
        for rows in batch_sizes(max_batch):
            try:
                runnable.run([_row(folder, form, extra)] * rows)
            except Exception as error:
                what = f"the graph cannot run {rows} rows of {form} ({error})"
                raise ModelError(f"{what}; correct {MANIFEST} or import the model again") from error
    return _row(folder, forms(folder.manifest, example)[0], extra)


def _row(folder: ModelFolder, form: Form, extra: Feeds) -> Feeds:
    """One row as most requests will bring it: an image where there is an adapter for one."""
    facts, adapter = folder.tensors, folder.manifest.adapter
    row = {**zeros(facts, form, 1), **extra}
    if adapter is not None and (image := adapter.image) is not None:
        across = form[image.input][2 if image.layout == "nchw" else 1]
        row[image.feed] = np.zeros((1, image.size[1], across, image.channels), np.uint8)
        row[image.input] = row[image.input][:0]
    return row
