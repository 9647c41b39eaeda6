"""From a file on disk to one frozen Configuration, checked whole, or to every problem at once."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from appliance.config import files
from appliance.config.contexts import contexts_of, instances_of, tokenizers_of
from appliance.config.crowding import check_crowding
from appliance.config.document import Document
from appliance.config.exposure import check_exposure
from appliance.config.idle import check_guards
from appliance.config.key_files import check_names
from appliance.config.materials import gather
from appliance.config.problems import ConfigurationError, Finding, Problem, problem_at
from appliance.config.references import check_references, check_validity
from appliance.config.runtime_dir import MAX_RUNTIME_DIR_BYTES, runtime_dir_of
from appliance.config.tables import MAX_WORKERS, HeadraceConfig
from appliance.config.validation import place_of, validate
from engine.settings import EngineSettings, ModelSettings
from proxy.config import Materials
from proxy.config_routes import ProxyConfig, cross_check


@dataclass(frozen=True)
class Configuration:
    """All that a reload takes: what the file says, and the slices of it that the children get.

    ``engine`` is None without models. The engine's socket is only a name in ``proxy`` and ``engine``: the supervisor
    puts the path of each generation's own in its place.
    """

    effective: HeadraceConfig
    proxy: ProxyConfig
    engine: EngineSettings | None
    materials: Materials = field(repr=False)
    sources: tuple[Path, ...]  # the main file first
    runtime_dir: Path
    workers: int
    access_log: Path | Literal["stderr", "off"]
    warnings: tuple[Problem, ...] = ()  # what is wrong and served all the same


def load(path: Path, *, at_start: bool = False) -> Configuration:
    """The configuration in ``path``, with everything that it names read and checked.

    at_start: nothing is served yet that could stay instead, so that an expired certificate, which takes one listener
    away from its clients, is no reason to take them all: it is a warning. Raises ConfigurationError with all problems:
    of spelling first, then of what the tables mean together.
    """
    document, sources = files.read(path)
    config = validate(HeadraceConfig, document)
    root = path.resolve().parent
    runtime_dir = runtime_dir_of(path, config.runtime_dir, os.environ, os.getuid())
    engine = _engine_settings(config, root)
    proxy = ProxyConfig(
        listeners=config.listeners,
        upstreams=config.upstreams,
        limits=config.limits,
        budgets=config.budgets,
        usage=config.usage,
        model_routes=config.model_routes,
        routes=config.routes,
        defaults=config.defaults,
        engine_socket=engine.socket_path if engine else None,
        engine_contexts=contexts_of(config, root),
        engine_tokenizers=tokenizers_of(config, root),
    )
    contents, findings = gather(config, root, os.environ)
    findings += check_references(config, contents, root)
    findings += check_exposure(config)
    findings += cross_check(proxy)
    findings += _check_appliance(config, runtime_dir)
    untimely = list(check_validity(config, contents, datetime.now(UTC)))
    crowded = check_crowding(config, instances_of(config, root), len(os.sched_getaffinity(0)))
    if findings or (untimely and not at_start):
        raise ConfigurationError(_in_order(document, findings + untimely))
    idle = [*check_guards(proxy), *check_names(config, proxy, contents)]
    return Configuration(
        effective=config,
        proxy=proxy,
        engine=engine,
        materials=contents,
        sources=sources,
        runtime_dir=runtime_dir,
        workers=default_workers(config) if config.workers == "auto" else config.workers,
        access_log=_access_log(config, root),
        warnings=tuple(_in_order(document, untimely + crowded + idle)),
    )


def default_workers(config: HeadraceConfig) -> int:
    """One per core that we may use, less one for the engine if there is one; at least one."""
    return min(MAX_WORKERS, max(1, len(os.sched_getaffinity(0)) - config.models.any))


def _engine_settings(config: HeadraceConfig, root: Path) -> EngineSettings | None:
    models = config.models
    if not models.any:
        return None
    return EngineSettings(
        socket_path="engine.sock",
        models=tuple(
            ModelSettings(
                name=name,
                path=str(root / models.path_of(name)),
                max_queue=model.queue,
                slots=model.slots,
                context=model.context,
                max_stall_s=model.max_stall,
                prefix_ttl_s=model.prefix_ttl,
                prefix_sharing=model.prefix_sharing,
                speculation=model.speculation,
                deterministic=model.deterministic,
                batching=model.batching_settings,
                instances=model.instances,
                provider=model.provider,
                provider_options={name: str(value) for name, value in model.provider_options.items()},
                fallback=model.fallback,
                idle_unload_s=model.idle_unload,
            )
            for name, model in models.by_name.items()
        ),
        repository=str(root / models.repository) if models.repository else None,
        control=models.control,
        threads=0 if models.threads == "auto" else models.threads,
        memory=models.memory,
        hang_s=models.hang,
        max_body_bytes=models.max_body,
    )


def _access_log(config: HeadraceConfig, root: Path) -> Path | Literal["stderr", "off"]:
    match config.log.access:
        case "stderr" | "off" as word:
            return word
        case written:
            return root / written


def _check_appliance(config: HeadraceConfig, runtime_dir: Path) -> list[Finding]:
    findings: list[Finding] = []
    if len(os.fsencode(runtime_dir)) > MAX_RUNTIME_DIR_BYTES:
        message = f"{runtime_dir} is too long for sockets inside it; expected {MAX_RUNTIME_DIR_BYTES} bytes at most"
        findings.append((("runtime_dir",), message))
    if config.admin.address in [listener.address for listener in config.listeners]:
        message = f"{config.admin.address} is a listener's address, too; expected one of its own"
        findings.append((("admin", "address"), message))
    return findings


def _in_order(document: Document, findings: list[Finding]) -> list[Problem]:
    return sorted(problem_at(place_of(document, loc), loc, message) for loc, message in findings)
