"""A tensor model from its folder: sessions opened, held against the manifest, and warmed up for every size of batch.

Blocking; whatever is wrong with the folder is a ModelError that says what to correct.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from engine import session
from engine.manifest import ClassifyFacts
from engine.model_folder import GRAPH, MANIFEST, ModelError, ModelFolder
from engine.settings import ModelSettings
from engine.tensor_facts import TensorModelFacts
from engine.tensors.datatypes import DTYPES
from engine.tensors.forms import TRIED_LENGTHS, Form, batch_sizes, form_of, forms, has_free_axes
from engine.tensors.graph_facts import check_graph
from engine.tensors.model import TensorModel
from engine.tensors.runnable import Feeds, GraphRunnable

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

_MOST_LABELS_BYTES = 16 << 20
_log = logging.getLogger(__name__)


def load_tensor_model(folder: ModelFolder, settings: ModelSettings, *, threads: int) -> TensorModel:
    """Load a model and run it for every size of batch. threads: of all its instances together; 0: one per usable
    core. Raises ModelError."""
    facts, manifest = folder.tensors, folder.manifest
    num_instances = manifest.instances if facts.batched else 1
    each = max(1, (threads or len(os.sched_getaffinity(0))) // num_instances)
    sessions = [_open(folder, settings, each) for _ in range(num_instances)]
    check_graph("input", facts.inputs, sessions[0].get_inputs(), all_needed=True)
    check_graph("output", facts.outputs, sessions[0].get_outputs(), all_needed=False)
    runnable = GraphRunnable(sessions, batched=facts.batched)
    model = TensorModel(
        folder,
        settings,
        runnable,
        labels=read_labels(folder, manifest.classify),
        created=int(datetime.fromisoformat(manifest.created).timestamp()),
    )
    try:
        _warm(runnable, folder, model.max_batch)
    except BaseException:
        model.close()
        raise
    return model


def read_labels(folder: ModelFolder, classify: ClassifyFacts | None) -> tuple[str, ...]:
    """The names of the classes, in order; () when there are none. Raises ModelError."""
    if classify is None or not isinstance(classify.labels, str):
        return classify.labels if classify else ()
    path = folder.path / classify.labels
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


def _open(folder: ModelFolder, settings: ModelSettings, threads: int) -> InferenceSession:
    return session.open_session(folder.file(GRAPH), threads=threads, placement=settings.placement)


def _warm(runnable: GraphRunnable, folder: ModelFolder, max_batch: int) -> None:
    facts = folder.tensors
    example = dict(facts.example) or find_example(runnable, facts, {})
    if example is None:
        _log.warning("%s: its free axes take no length that was tried; the first requests warm it up", folder.path)
        return
    for form in forms(folder.manifest, example):
        for rows in batch_sizes(max_batch):
            try:
                runnable.run([zeros(facts, form, 1)] * rows)
            except Exception as error:
                what = f"the graph cannot run {rows} rows of {form} ({error})"
                raise ModelError(f"{what}; correct {MANIFEST} or import the model again") from error
