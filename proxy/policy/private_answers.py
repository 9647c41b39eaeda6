"""What the answers of language models say to caches: nobody may keep them, and what they depend on. Pure.

Not among ``policies:``: it stands in the chain of each route whose answers are a language model's, before what an
operator sets for answers, which wins.
"""

from __future__ import annotations

from proxy.chain import Policy
from proxy.config import HashOf
from proxy.exchange import Exchange, Head
from proxy.policy.env import PolicyEnv

_KEYS = (b"Authorization", b"X-API-Key")
_CHOICE = b"X-Prompt-Route"


class PrivateAnswers(Policy):
    def __init__(self, env: PolicyEnv) -> None:
        self._vary = varies_by(env)

    def respond(self, x: Exchange, head: Head, now: float) -> None:
        if x.has_body and not x.path.startswith("/v2/"):  # the Open Inference Protocol, which has no texts
            keep_private(head, self._vary)


def varies_by(env: PolicyEnv) -> bytes:
    """The fields of a request by which a route chooses what answers."""
    names = [*_KEYS, *([_CHOICE] if env.by_model is not None else [])]
    variants = getattr(env.beside, "variants", None)
    user = variants.user if variants is not None else None
    if isinstance(user, HashOf):
        names.append(user.header.encode() if user.header else b"Cookie")
    return b", ".join(names)


def keep_private(head: Head, vary: bytes) -> None:
    """Say that no cache may keep this answer, whatever its upstream says; and what chose it."""
    head.headers = [field for field in head.headers if field[0].lower() != b"cache-control"]
    head.headers.append((b"Cache-Control", b"private, no-store"))
    head.headers.append((b"Vary", vary))
