"""Whether the threads that a configuration asks for have cores to run on.

It is a warning: what shares a core takes turns, which is slower and still right. A run of a model has
``models.threads`` threads, which its instances divide; each has one at least. Owns the arithmetic; counts no cores.
"""

from __future__ import annotations

from collections.abc import Mapping

from appliance.config.problems import Finding
from appliance.config.tables import HeadraceConfig


def check_crowding(config: HeadraceConfig, instances: Mapping[str, int], num_cores: int) -> list[Finding]:
    """What is more than the cores. instances: of the models' folders, where the configuration says nothing."""
    findings: list[Finding] = []
    threads = num_cores if config.models.threads == "auto" else config.models.threads
    if threads > num_cores:
        message = f"{threads} threads of a run share {_cores(num_cores)}; up to {num_cores} run at once, so set `auto`"
        findings.append((("models", "threads"), message))
    for name, model in config.models.by_name.items():
        num_instances = model.instances or instances.get(name, 1)
        num_threads = num_instances * max(1, threads // num_instances)
        if num_instances > 1 and num_threads > num_cores and num_instances > threads:
            key: tuple[str, ...] = ("models", name, "instances") if model.instances else ("models", name)
            message = (
                f"{num_instances} instances with a thread each share {_cores(num_cores)}; "
                f"up to {min(threads, num_cores)} instances run at once, and each holds the weights once more"
            )
            findings.append((key, message))
    return findings


def _cores(num_cores: int) -> str:
    return f"{num_cores} cores" if num_cores > 1 else "one core"
