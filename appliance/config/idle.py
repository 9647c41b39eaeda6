"""Whether what the configuration asks for can ever do something: guards that judge nobody, windows that never fit.

It is a warning: what does nothing does no harm either, and may be written ahead of what it is for. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator

from appliance.config.problems import Finding, Loc
from proxy.config_routes import ENGINE, ProxyConfig, Route
from proxy.model_routes import ModelRoutes


def check_guards(config: ProxyConfig) -> Iterator[Finding]:
    """Policies ``context_guard`` that know no context, or one that their window cannot fit into. config: without
    problems."""
    for index, route in enumerate(config.routes):
        guard = getattr(route.policies, "context_guard", None)
        if guard is None:
            continue
        loc: Loc = ("routes", index, "policies", "context_guard")
        known, untold = _contexts(route, config)
        if guard.context is None and untold:
            advice = "set `context` here" + (" or in the model route" if route.models is not None else "")
            yield loc, f"nobody has told the context of {', '.join(untold)}, whose requests pass unjudged; {advice}"
        contexts = [*known.values(), *([guard.context] if guard.context is not None and (untold or not known) else [])]
        if guard.window is not None and contexts:
            context = min(contexts)
            room = context - int(context * guard.reserve)
            if guard.window.max_len > room:
                message = (
                    f"a window of {guard.window.max_len} tokens is more than a context of {context} has room for "
                    f"beside the reserve, {room}: what is too long for it is refused; make the window smaller"
                )
                yield (*loc, "window", "max_len"), message


def _contexts(route: Route, config: ProxyConfig) -> tuple[dict[str, int], list[str]]:
    """(tokens by model, whose are not known) of what a route goes to."""
    if route.models is not None:
        to = route.models
        models = ModelRoutes(config.model_routes, to.models, to.default, config.variant_models(route))
        known = models.contexts(config.engine_contexts)
        return known, [each.name for each in models.serving() if each.name not in known]
    targets = config.targets_of(route)
    known = config.engine_contexts if ENGINE in targets else {}
    return known, [f"the models of {name}" for name in targets if name != ENGINE or not known]
