"""The policies, one behaviour per file, and the one list that says in which order they are asked.

``admit`` runs down this list, ``respond`` and ``settle`` up (``proxy.chain``). Identity comes before what is counted
per identity; what is refused costs nothing further down, so a request over its concurrency is not charged to its rate.
Adding a policy: its file, one line here, its test, its example in ``conf/headrace.yaml``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic import create_model

from proxy.chain import Chain, Policy
from proxy.config import Table
from proxy.policy import (
    access,
    access_log,
    auth,
    basic_auth,
    context_guard,
    cors,
    headers,
    idempotency,
    in_flight,
    key_models,
    priority,
    rate_limit,
    request_id,
    shed,
    size_limit,
    tokens,
    trim,
    variants,
)
from proxy.policy.env import PolicyEnv, PolicyModule, States
from proxy.policy.model_limits import build_model_limits
from proxy.policy.private_answers import PrivateAnswers

__all__ = ["POLICIES", "PolicyEnv", "PolicyModule", "PolicySet", "States", "build_chain"]

POLICIES: tuple[PolicyModule, ...] = (
    access_log,
    request_id,
    headers,
    access,
    cors,
    auth,
    basic_auth,
    priority,
    shed,
    size_limit,
    in_flight,
    rate_limit,
    idempotency,
    variants,
    context_guard,
    trim,
    tokens,
)

#: What stands behind it may go by the model that a request is for, on routes by models.
_BEFORE_MODELS = variants

if TYPE_CHECKING:
    PolicySet = Table
else:
    _fields: dict[str, Any] = {
        module.NAME: (module.Config, module.Config()) if module.ALWAYS else (module.Config | None, None)
        for module in POLICIES
    }
    PolicySet = create_model("PolicySet", __base__=Table, __doc__="A route's ``policies:``, by name.", **_fields)


def build_chain(policies: PolicySet, env: PolicyEnv) -> Chain:
    """The chain of one route or, with ``PolicySet()``, of what no route takes. Raises ValueError."""
    built: list[Policy] = []
    env = replace(env, beside=policies)
    for module in POLICIES:
        config = getattr(policies, module.NAME)
        if config is not None:
            policy = module.build(config, env)
            if type(policy) is not Policy:  # one without hooks has nothing to do on this route
                built.append(policy)
            if (part := policy.behind()) is not None:
                built.append(part)
        if module is _BEFORE_MODELS:
            built += _of_models(env)
    return Chain([*built, *(part for each in built if (part := each.last()) is not None)])


def _of_models(env: PolicyEnv) -> Iterator[Policy]:
    """What stands in the chain of a route by models, or of one whose answers are language models'."""
    if env.by_model is not None:
        yield env.by_model(env)
        limits = build_model_limits(env)
        if limits is not None:
            yield limits
    elif env.api != "none":
        yield PrivateAnswers(env)
        bound = key_models.build(env)
        if bound is not None:
            yield bound
