"""``headrace model``: model folders on this box."""

from __future__ import annotations

import os
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from appliance import exit_codes
from appliance.commands.terminal import CommandError, JsonOption, note, os_error, print_json, progress_bars

if TYPE_CHECKING:
    from engine.model_folder import ModelFolder

ModelsOption = Annotated[
    Path | None,
    typer.Option(
        "--dir",
        metavar="DIR",
        envvar="HEADRACE_MODELS",
        help="Where model folders lie; otherwise /var/lib/headrace/models for root, "
        "~/.local/share/headrace/models for others.",
    ),
]

app = typer.Typer(help="Get models, import them, list them.", no_args_is_help=True)


class Weights(StrEnum):
    """In what form a chat or embedding model's matrices are kept."""

    exact = "exact"
    int8 = "int8"
    float32 = "float32"


class KvCache(StrEnum):
    """In what form a chat model keeps keys and values."""

    float32 = "float32"
    int8 = "int8"


@app.command()
def pull(
    name: Annotated[str, typer.Argument(metavar="NAME")],
    directory: ModelsOption = None,
    weights: Annotated[
        Weights | None,
        typer.Option("--weights", help="As for import; otherwise the form that suits the model best on a CPU."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Download a model of the catalogue at its pinned version and make a model folder of it."""
    from engine import catalog

    def make(models_dir: Path, progress: Callable[[str, int, int], None]) -> Any:
        return catalog.pull(name, models_dir, progress, weights.value if weights else None)

    _make(make, directory, as_json)


@app.command("import")
def import_(
    path: Annotated[Path, typer.Argument(metavar="PATH")],
    directory: ModelsOption = None,
    name: Annotated[str | None, typer.Option("--name", help="What to call the model; otherwise as PATH.")] = None,
    weights: Annotated[
        Weights,
        typer.Option(
            "--weights",
            help="A chat or embedding model's matrices as the file has them, in eight bits with their inputs (on a CPU "
            "prompts and texts are read about twice as fast), or as float32 numbers.",
        ),
    ] = Weights.exact,
    kv_cache: Annotated[
        KvCache,
        typer.Option(
            "--kv-cache",
            help="A chat model's keys and values as float32, or in eight bits: a quarter of the memory and faster over "
            "long texts, but prompts are read more slowly. Wants --weights int8.",
        ),
    ] = KvCache.float32,
    shapes: Annotated[
        list[str] | None,
        typer.Option(
            "--shape",
            metavar="TENSOR=N,N,..",
            help="Of an ONNX file's input or output, narrower than the file has it: x=-1,3,48,-1 (-1: any length).",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Make a model folder from an ONNX or GGUF file or a directory with safetensors."""
    from engine import catalog
    from engine.importers.onnx_import import Extras

    extras = Extras(shapes=dict(map(_shape, shapes or [])))
    _make(
        lambda models_dir, progress: catalog.import_model(
            path, models_dir, progress, name, weights.value, extras, kv_cache.value
        ),
        directory,
        as_json,
    )


@app.command("list")
def list_(directory: ModelsOption = None, as_json: JsonOption = False) -> None:
    """List the model folders on this box, and what the catalogue offers."""
    from engine import model_folder
    from engine.catalog import CATALOG
    from engine.model_folder import ModelError

    models_dir = _models_dir(directory)
    rows: list[dict[str, Any]] = []
    for path in sorted(models_dir.iterdir()) if models_dir.is_dir() else []:
        if not (path / "model.yaml").exists():
            continue
        try:
            folder = model_folder.read(path)
            size = folder.total_bytes()
            rows.append({"name": folder.name, "path": str(path), "kind": folder.manifest.kind, "bytes": size})
        except ModelError as error:
            rows.append({"name": path.name, "path": str(path), "problem": str(error)})
    absent = sorted(set(CATALOG) - {row["name"] for row in rows})
    if as_json:
        print_json({"directory": str(models_dir), "models": rows, "available": absent})
        return
    for row in rows:
        facts = row.get("problem") or f"{row['kind']}  {row['bytes'] / 1e6:.0f} MB  {row['path']}"
        print(f"{row['name']}  {facts}")
    for name in absent:
        print(f"{name}  not here; `headrace model pull {name}` gets it")


@app.command()
def fit(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A model of `headrace model list`, or a model folder.")],
    memory: Annotated[
        str | None, typer.Option("--memory", metavar="SIZE", help="Like 8GiB; otherwise what is free on this box.")
    ] = None,
    directory: ModelsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say how many texts of which length a chat model can work on at once, within an amount of memory.

    Memory is taken as texts grow, so more slots than these may be configured: what does not fit waits its turn.
    """
    from engine import memory as box
    from engine import model_folder
    from engine.llm.fit import fits, longest_context
    from engine.loading import need
    from engine.model_folder import ModelError
    from engine.settings import ModelSettings
    from proxy.units import parse_size

    path = Path(name) if (Path(name) / "model.yaml").exists() else _models_dir(directory) / name
    try:
        memory_bytes = box.available_bytes() if memory is None else parse_size(memory)
        folder = model_folder.read(path)
        facts = folder.chat
    except (ModelError, MemoryError, ValueError) as error:
        raise CommandError(str(error)) from None
    weights_bytes = need(folder, ModelSettings(name=folder.name, path=str(path))).weights
    kv_bytes = memory_bytes - weights_bytes
    rows = list(fits(facts, kv_bytes))
    longest = longest_context(facts, kv_bytes)
    if as_json:
        tables = [row._asdict() for row in rows]
        sizes = {"memory_bytes": memory_bytes, "weights_bytes": weights_bytes, "longest_context": longest}
        print_json({"name": folder.name, **sizes, "fits": tables})
        return
    print(f"{folder.name} in {_mib(memory_bytes)}: {_mib(weights_bytes)} for the model itself")
    if not longest:
        print(f"it does not fit: {_mib(rows[-1].slot_bytes - kv_bytes)} more for one text of {rows[-1].context} tokens")
        return
    for row in rows:
        print(f"{row.slots:5}  slots full with {row.context} tokens, {_mib(row.slot_bytes)} each")
    if longest < facts.context:
        print(f"the longest context that fits is {longest} tokens; the model was trained for {facts.context}")


@app.command()
def quality(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A model of `headrace model list`, or a model folder.")],
    against: Annotated[
        Path, typer.Option("--against", metavar="PATH", help="The GGUF file or directory that the model came from.")
    ],
    text: Annotated[
        Path | None, typer.Option("--text", metavar="FILE", help="UTF-8 text to read; otherwise a short story.")
    ] = None,
    directory: ModelsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say how far a chat model's answers, or an embedding model's vectors, stray from its source's weights in float32.

    Both read a text of up to 1024 tokens, or each line of it as one text. The source is imported in float32 for it,
    beside the model, and removed.
    """
    import tempfile

    from engine import model_folder
    from engine.catalog import importer_of
    from engine.llm.sample_text import SAMPLE_TEXT
    from engine.model_folder import ModelError

    path = Path(name) if (Path(name) / "model.yaml").exists() else _models_dir(directory) / name
    try:
        folder = model_folder.read(path)
        read = SAMPLE_TEXT if text is None else text.read_text(encoding="utf-8")
        compare = (_vectors if folder.manifest.kind == "embedding" else _answers)(folder, read, against)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".quality-") as place, progress_bars() as progress:
            source = importer_of(against, "float32")(against, Path(place) / "source", name="source", progress=progress)
            result, lines = compare(source)
    except (ModelError, ValueError) as error:
        raise CommandError(str(error)) from None
    except OSError as error:
        raise os_error(error, f"compare {name} with {against}") from None
    if as_json:
        print_json({"name": folder.name, **result})
    else:
        print("\n".join(lines))


Comparison = Callable[[Any], tuple[dict[str, Any], list[str]]]  # with the source's folder; what was found, and in words


def _answers(folder: ModelFolder, text: str, against: Path) -> Comparison:
    """Of a chat model along a text. Raises CommandError when it is too short."""
    from engine.llm.decoder import load_decoder
    from engine.llm.quality import MAX_TOKENS, measure
    from engine.llm.vocabulary import load_vocabulary

    context = min(MAX_TOKENS, folder.chat.context)
    tokens = load_vocabulary(folder).encode_text(text, max_tokens=len(text) + 1)[:context]
    if len(tokens) < 2:
        raise CommandError("the text has fewer than two tokens; give a longer one")

    def compare(source: ModelFolder) -> tuple[dict[str, Any], list[str]]:
        if source.chat.vocab_size != folder.chat.vocab_size:
            raise CommandError(f"{against} has another vocabulary than {folder.name}; it is not its source")
        model, exact = (load_decoder(each, slots=1, context=context, threads=0) for each in (folder, source))
        result = measure(model, exact, tokens)
        return result._asdict(), [
            f"{folder.name} along {result.tokens} tokens, against {against.name} in float32",
            f"KL divergence, mean   {result.kl_mean:.5f} nats",
            f"same likeliest token  {result.top_1:.1%}",
            f"perplexity            {result.perplexity:.3f}, the source's {result.source_perplexity:.3f}",
        ]

    return compare


def _vectors(folder: ModelFolder, text: str, against: Path) -> Comparison:
    """Of an embedding model on the lines of a text. Raises CommandError when there are too few."""
    from engine.adapters.text import load_text_adapter
    from engine.embedding_quality import measure
    from engine.encoder import load_encoder
    from engine.errors import RequestError

    lines = [line for line in text.splitlines() if line.strip()]
    if len(lines) < 2:
        raise CommandError("the text has fewer than two lines, each of which is embedded; give a longer one")
    adapter = load_text_adapter(folder)
    try:
        rows = [adapter.encode(line, f"line {number}") for number, line in enumerate(lines, 1)]
    except RequestError as error:
        raise CommandError(str(error)) from None

    def compare(source: ModelFolder) -> tuple[dict[str, Any], list[str]]:
        if source.manifest.kind != "embedding" or source.embedding.dimensions != folder.embedding.dimensions:
            raise CommandError(f"{against} gives other vectors than {folder.name}; it is not its source")
        takes = load_text_adapter(source)
        if (takes.vocab_size, takes.max_tokens) != (adapter.vocab_size, adapter.max_tokens):
            raise CommandError(f"{against} takes other texts than {folder.name}; it is not its source")
        result = measure(load_encoder(folder, threads=0), load_encoder(source, threads=0), adapter, rows)
        return {**result._asdict(), "least_like": lines[result.least_like]}, [
            f"{folder.name} on {result.texts} texts, against {against.name} in float32",
            f"cosine, mean       {result.cosine_mean:.5f}",
            f"cosine, least      {result.cosine_least:.5f}, of {lines[result.least_like][:60]!r}",
            f"same nearest text  {result.same_nearest:.1%}",
        ]

    return compare


def _make(make: Callable[[Path, Callable[[str, int, int], None]], Any], directory: Path | None, as_json: bool) -> None:
    from engine.model_folder import ModelError

    models_dir = _models_dir(directory)
    try:
        models_dir.mkdir(parents=True, exist_ok=True)
        with progress_bars() as progress:
            folder = make(models_dir, progress)
    except ModelError as error:
        raise CommandError(str(error)) from None
    except OSError as error:
        raise os_error(error, f"make a model folder in {models_dir}") from None
    changes = folder.manifest.changes
    if as_json:
        print_json({"name": folder.name, "path": str(folder.path), "changes": list(changes)})
    else:
        for change in changes:
            note(f"{folder.name}: {change}")
        entry = f"{folder.name}: {{path: {folder.path}}}"
        note(f"{folder.name} is ready; serve it with `models: {{{entry}}}`")


def _shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, equals, lengths = text.rpartition("=")
    try:
        if not equals or not name:
            raise ValueError
        return name, tuple(int(length) for length in lengths.split(","))
    except ValueError:
        raise CommandError(f"--shape {text}: write TENSOR=N,N,.. like x=-1,3,48,-1", exit_codes.USAGE) from None


def _mib(size: int) -> str:
    return f"{size / (1 << 20):,.0f} MiB"


def _models_dir(given: Path | None) -> Path:
    """The directory given, else the system's for root, else one of the user's."""
    if given is not None:
        return given
    if os.geteuid() == 0:
        return Path("/var/lib/headrace/models")
    data = os.environ.get("XDG_DATA_HOME")
    return (Path(data) if data else Path.home() / ".local/share") / "headrace/models"
