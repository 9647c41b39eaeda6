"""An ONNX file made into a model folder: read within bounds, its weights stored, its rows made free if that is safe."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx

from engine import model_folder
from engine.importers.flat_gathers import unroll
from engine.importers.onnx_file import external, read_onnx
from engine.importers.onnx_rows import Shapes, settle
from engine.importers.onnx_weights import store
from engine.importers.weights import WeightsFile
from engine.manifest import Manifest, Source, created_now
from engine.model_folder import ModelError, ModelFolder

_OLDEST_OPSET = 7


@dataclass(frozen=True, slots=True)
class Extras:
    """What the file does not say of the model and whoever imports it may know."""

    shapes: Shapes = field(default_factory=dict)  # of inputs and outputs, narrower than the graph has them
    tables: Mapping[str, Any] = field(default_factory=dict)  # of the manifest: adapter, classify, batching, tokenizer
    files: Mapping[str, bytes] = field(default_factory=dict)  # that these tables name
    license: str | None = None


NO_EXTRAS = Extras()


def import_onnx(
    source: Path,
    destination: Path,
    *,
    name: str | None = None,
    progress: Callable[[str, int, int], None],
    extras: Extras = NO_EXTRAS,
    origin: Path | None = None,
) -> ModelFolder:
    """Make the model folder `destination` from an ONNX file. origin: what that was made from. Raises ModelError."""
    progress("read", 0, 1)
    model = read_onnx(source)
    _check_opset(model, source)
    extents = external(model, source)
    progress("read", 1, 1)
    progress("hash", 0, 1)
    origin = origin or source
    made_from = Source(file=origin.name, sha256=model_folder.sha256(origin))
    progress("hash", 1, 1)
    with model_folder.staged(destination) as directory:
        weights = directory / model_folder.WEIGHTS
        try:
            rolled = unroll(model, extents)
            with WeightsFile(weights) as weights_file:
                weights_bytes = store(model, extents, weights_file, progress)
            if not weights_bytes:
                weights.unlink()
            progress("try", 0, 1)
            facts, changes = settle(model, directory / model_folder.GRAPH, extras.shapes, weights_bytes)
            progress("try", 1, 1)
            manifest = Manifest(
                name=name or destination.name,
                kind="tensor",
                architecture="onnx",
                license=extras.license,
                created=created_now(),
                source=made_from,
                changes=(
                    *(f"{node}: a Reshape instead of gathering every place in its order" for node in rolled),
                    *changes,
                ),
                tensors=facts,
                **extras.tables,
            )
        except (ModelError, ValueError) as error:
            raise ModelError(f"{origin}: {error}") from error
        for file, content in extras.files.items():
            (directory / file).write_bytes(content)
        model_folder.seal(directory, manifest)
    return model_folder.read(destination)


def _check_opset(model: onnx.ModelProto, source: Path) -> None:
    newest = onnx.defs.onnx_opset_version()
    for imported in model.opset_import:
        if imported.domain in ("", "ai.onnx") and not _OLDEST_OPSET <= imported.version <= newest:
            raise ModelError(
                f"{source}: is of opset {imported.version}, those from {_OLDEST_OPSET} to {newest} are run; export the"
                " model with one of these"
            )
