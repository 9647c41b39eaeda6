"""Which variant a user gets of a route's: the same one each time, and nobody moves who need not. Pure.

Two hashes of user and path decide, and nothing is remembered. The first draws, among all variants evenly, the one that
the user may get (rendezvous hashing, Thaler and Ravishankar, 1998); its name and the user decide that alone, whatever
the shares are. The second is a number in [0, 1), and the user gets the variant while that is below the variant's share
among those who may get it, else the control. So with n variants each has 1/n of the users to itself, and a share is no
larger than that. When a share changes, exactly as many users move as it changes by, between that variant and the
control: the least that is possible, and no other variant loses or gains anybody. When a variant is added or removed,
those whom the first hash gives to another one move.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from proxy.upstream.balance_hash import hash_of, mix

MAX_VARIANTS: Final = 8
MIN_SHARE: Final = 0.01
MAX_SHARE: Final = 0.2
#: What the control keeps at least, to compare with.
MIN_CONTROL: Final = 0.2
#: Groups of users by which it is seen how much users differ.
NUM_GROUPS: Final = 16
_CONTROL: Final = -1
_SECOND: Final = hash_of("share")  # another hash of the same
_SPAN: Final = float(1 << 64)
_EXACT: Final = 1e-9


def choose(user: str, path: str, seeds: Sequence[int], shares: Sequence[float]) -> int:
    """The index of the user's variant on this path, -1 for the control. seeds: ``hash_of`` the variants' names."""
    value = hash_of(f"{user}\n{path}")
    best = most = -1
    for i, seed in enumerate(seeds):
        drawn = mix(value ^ seed)
        if drawn > most:
            best, most = i, drawn
    point = mix(mix(value ^ seeds[best]) ^ _SECOND) / _SPAN
    return best if point < shares[best] * len(seeds) else _CONTROL


def group_of(user: str) -> int:
    """One of NUM_GROUPS groups of users, whatever variants they get."""
    return hash_of(user) % NUM_GROUPS


def why_not(name: str, share: float, others: Sequence[float]) -> str | None:
    """What is wrong with a share beside those of the other variants; None: nothing."""
    num = len(others) + 1
    most = min(MAX_SHARE, 1 / num)
    if share and not MIN_SHARE - _EXACT <= share <= most + _EXACT:
        why = f" ({num} variants divide all users evenly among them)" if most < MAX_SHARE else ""
        return f"the share of {name} must be 1% to {most * 100:g}%{why}; with 0% nobody gets it"
    total = share + sum(others)
    if total > 1 - MIN_CONTROL + _EXACT:
        return f"the variants' shares are {total * 100:g}% together; {MIN_CONTROL:.0%} at least are the control's"
    return None
