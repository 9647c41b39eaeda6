"""The walls of the house: what the pure files may not import, and which package may not know which."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import aiohttp.http
import aiohttp.streams
import aiohttp.web
import pytest

ROOT = Path(__file__).resolve().parent.parent
FORBIDDEN = {"asyncio", "aiohttp", "socket", "ssl", "threading", "time", "random", "onnxruntime"}
PURE = [
    "appliance/candidate.py",
    "appliance/crew.py",
    "appliance/events.py",
    "appliance/post.py",
    "appliance/reload_queue.py",
    "appliance/supervisor.py",
    "engine/adapters/base64_text.py",
    "engine/adapters/image_geometry.py",
    "engine/adapters/image_header.py",
    "engine/admission.py",
    "engine/arbiter.py",
    "engine/batching/arrivals.py",
    "engine/batching/backlog.py",
    "engine/batching/batcher.py",
    "engine/batching/item.py",
    "engine/batching/journal.py",
    "engine/batching/misfit.py",
    "engine/batching/pace.py",
    "engine/batching/returns.py",
    "engine/batching/settings.py",
    "engine/batching/slo.py",
    "engine/batching/tally.py",
    "engine/batching/waiting.py",
    "engine/batching/window.py",
    "engine/entry.py",
    "engine/folding.py",
    "engine/fusion.py",
    "engine/importers/batch_axis.py",
    "engine/importers/compensation.py",
    "engine/importers/family.py",
    "engine/importers/gguf_blocks.py",
    "engine/importers/gguf_super_blocks.py",
    "engine/importers/onnx_signature.py",
    "engine/importers/reading.py",
    "engine/importers/rope.py",
    "engine/importers/rotations.py",
    "engine/llm/cost.py",
    "engine/llm/deadlines.py",
    "engine/llm/detokenize.py",
    "engine/llm/draw.py",
    "engine/llm/forecast.py",
    "engine/llm/fit.py",
    "engine/llm/free_slots.py",
    "engine/llm/kv.py",
    "engine/llm/ledger.py",
    "engine/llm/lookup.py",
    "engine/llm/penalties.py",
    "engine/llm/prefixes.py",
    "engine/http/message.py",
    "engine/http/router.py",
    "engine/http/stream.py",
    "engine/llm/row.py",
    "engine/llm/sampler.py",
    "engine/llm/sampling.py",
    "engine/llm/scheduler.py",
    "engine/llm/sequence.py",
    "engine/llm/slot_memory.py",
    "engine/llm/slots.py",
    "engine/llm/speculate.py",
    "engine/llm/standing.py",
    "engine/llm/waiting.py",
    "engine/occupancy.py",
    "engine/providers.py",
    "engine/residency.py",
    "engine/tensor_facts.py",
    "engine/tensors/check.py",
    "engine/tensors/datatypes.py",
    "engine/tensors/forms.py",
    "engine/tensors/graph_facts.py",
    "engine/tensors/items.py",
    "engine/tensors/shares.py",
    "engine/wire/oip_answer.py",
    "engine/wire/oip_binary.py",
    "engine/wire/oip_body.py",
    "engine/wire/oip_header.py",
    "engine/wire/oip_json.py",
    "engine/wire/oip_metadata.py",
    "engine/wire/oip_raw.py",
    "engine/wire/oip_request.py",
    "engine/wire/oip_statistics.py",
    "proxy/answer_filter.py",
    "proxy/answer_times.py",
    "proxy/answers.py",
    "proxy/budget_level.py",
    "proxy/budget_windows.py",
    "proxy/budgets.py",
    "proxy/chain.py",
    "proxy/client_address.py",
    "proxy/conditions.py",
    "proxy/config_match.py",
    "proxy/config_routes.py",
    "proxy/config_variants.py",
    "proxy/deadline.py",
    "proxy/exchange.py",
    "proxy/explain.py",
    "proxy/fields.py",
    "proxy/gate.py",
    "proxy/gcra.py",
    "proxy/guesses.py",
    "proxy/headers.py",
    "proxy/htpasswd.py",
    "proxy/idempotency/answer.py",
    "proxy/idempotency/key.py",
    "proxy/idempotency/recorder.py",
    "proxy/idempotency/store.py",
    "proxy/keys.py",
    "proxy/llm/context.py",
    "proxy/llm/error_events.py",
    "proxy/llm/events.py",
    "proxy/llm/first_content.py",
    "proxy/llm/hold.py",
    "proxy/llm/notes.py",
    "proxy/llm/places.py",
    "proxy/llm/request.py",
    "proxy/llm/segments.py",
    "proxy/llm/shorten.py",
    "proxy/limit_fields.py",
    "proxy/limit_key.py",
    "proxy/limit_kinds.py",
    "proxy/llm/slo.py",
    "proxy/llm/splice.py",
    "proxy/llm/summaries.py",
    "proxy/llm/truncate.py",
    "proxy/llm/unreadable.py",
    "proxy/llm/usage.py",
    "proxy/llm/usage_filter.py",
    "proxy/llm/windows.py",
    "proxy/model_routes.py",
    "proxy/named_limit.py",
    "proxy/paths.py",
    "proxy/patterns.py",
    "proxy/rewrite.py",
    "proxy/route.py",
    "proxy/shared/answers.py",
    "proxy/shared/budget.py",
    "proxy/shared/columns.py",
    "proxy/shared/key_slots.py",
    "proxy/shared/limit.py",
    "proxy/shared/limit_memory.py",
    "proxy/shared/mapped_columns.py",
    "proxy/shared/mapped_record.py",
    "proxy/shared/permits.py",
    "proxy/shared/places.py",
    "proxy/shared/record.py",
    "proxy/shared/sliding.py",
    "proxy/stream_words.py",
    "proxy/strict_json.py",
    "proxy/templates.py",
    "proxy/policy/token_limits.py",
    "proxy/upstream/addresses.py",
    "proxy/upstream/attempts.py",
    "proxy/upstream/balance.py",
    "proxy/upstream/balance_hash.py",
    "proxy/upstream/breaker.py",
    "proxy/upstream/breaker_table.py",
    "proxy/upstream/health.py",
    "proxy/upstream/key_ring.py",
    "proxy/upstream/pool.py",
    "proxy/upstream/retry.py",
    "proxy/upstream/state.py",
    "proxy/upstream/retry_after.py",
    "proxy/upstream/permit.py",
    "proxy/upstream/breaker_report.py",
    "proxy/head_watch.py",
    "proxy/policy/model_limits.py",
    "proxy/upstream/window.py",
    "proxy/variants/assignment.py",
    "proxy/variants/experiment.py",
    "proxy/variants/sequential.py",
    "proxy/variants/standing.py",
    "proxy/variants/tally.py",
    "proxy/variants/token.py",
]
POLICIES = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "proxy" / "policy").glob("*.py"))
STRANGERS = {"proxy": {"appliance", "engine"}, "engine": {"appliance", "proxy"}}


def imports(path: Path) -> Iterator[str]:
    """The dotted names of all modules that the file imports, wherever in it, except for type checking alone."""
    for node in ast.walk(_without_type_checking(ast.parse(path.read_text()))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


class _DropTypeChecking(ast.NodeTransformer):
    def visit_If(self, node: ast.If) -> ast.AST | None:
        is_guard = isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        return None if is_guard else self.generic_visit(node)


def _without_type_checking(tree: ast.Module) -> ast.AST:
    return _DropTypeChecking().visit(tree)


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


@pytest.mark.parametrize("name", PURE + POLICIES)
def test_a_pure_file_imports_neither_clocks_nor_sockets_nor_the_runtime(name: str) -> None:
    found = {module.partition(".")[0] for module in imports(ROOT / name)}
    assert not found & FORBIDDEN


def test_there_are_policies() -> None:
    assert len(POLICIES) >= 8


@pytest.mark.parametrize("package", sorted(STRANGERS))
def test_a_package_does_not_import_its_strangers(package: str) -> None:
    offences = {
        f"{path.relative_to(ROOT)} imports {module}"
        for path in sources(package)
        for module in imports(path)
        if module.partition(".")[0] in STRANGERS[package]
    }
    assert not offences


def test_only_the_downstream_file_uses_private_names_of_aiohttp() -> None:
    public = set(aiohttp.__all__) | set(aiohttp.http.__all__) | set(aiohttp.web.__all__) | set(aiohttp.streams.__all__)
    offences = {
        f"{path.relative_to(ROOT)} takes {alias.name} of {node.module}"
        for path in sources("proxy")
        if path.name != "downstream.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "aiohttp"
        for alias in node.names
        if alias.name not in public | {"web"}
    }
    assert not offences


def test_only_named_files_import_the_runtime() -> None:
    users = {
        str(path.relative_to(ROOT))
        for package in ("engine", "proxy", "appliance")
        for path in sources(package)
        if any(module.partition(".")[0] == "onnxruntime" for module in imports(path))
    }
    assert users <= {"engine/session.py", "engine/llm/decoder.py"}


def test_whichever_module_of_policies_is_imported_first_it_can_be() -> None:
    """``proxy.policy`` imports all policies: what these import must not ask for ``proxy.policy`` in its turn, or it
    depends on who was first whether that is there."""
    found = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in sources("proxy")}
    needed, waiting = set(), ["proxy.policy.__init__"]
    while waiting:
        module = waiting.pop()
        if module in found and module not in needed:
            needed.add(module)
            waiting += imports_at_once(found[module])
    assert "proxy.named_limit" in needed
    others = {module for module in needed if not module.startswith("proxy.policy.")}
    rings = {
        module for module in others if any(each.startswith("proxy.policy") for each in imports_at_once(found[module]))
    }
    assert not rings


def imports_at_once(path: Path) -> Iterator[str]:
    """What a file of ``proxy`` imports when it is imported, modules and what may be modules."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_compiled_code_awaits_nothing_while_it_handles_an_exception() -> None:
    """mypyc leaves such an exception to whatever runs meanwhile: other tasks take it for their own."""
    compiled = re.findall(r'"(proxy/[\w/]+\.py)"', (ROOT / "setup.py").read_text())
    assert "proxy/forward.py" in compiled
    offences = [
        f"{name}:{awaited.lineno}"
        for name in compiled
        for tried in ast.walk(ast.parse((ROOT / name).read_text()))
        if isinstance(tried, ast.Try)
        for handling in (*tried.handlers, *tried.finalbody)
        for awaited in ast.walk(handling)
        if isinstance(awaited, ast.Await)
    ]
    assert not offences


def test_compiled_code_gives_exceptions_of_different_types_different_names() -> None:
    """mypyc takes all of one name in a function for the type of the first: another one is a TypeError, and whoever
    waited for what is done about it waits on."""
    offences = []
    for name in re.findall(r'"(proxy/[\w/]+\.py)"', (ROOT / "setup.py").read_text()):
        for function in ast.walk(ast.parse((ROOT / name).read_text())):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                types: dict[str, str] = {}
                for handler in ast.walk(function):
                    if isinstance(handler, ast.ExceptHandler) and handler.name and handler.type:
                        spelt = ast.unparse(handler.type)
                        if types.setdefault(handler.name, spelt) != spelt:
                            offences.append(f"{name}:{handler.lineno}")
    assert not offences
