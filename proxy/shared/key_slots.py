"""Which slot of the mapping is a key's: open addressing in a window, by keyed digests, with nothing to clean up.

A key may stand in any of the WINDOW slots that begin where its digest says, and is looked for in all of them; so a slot
can be emptied or given to another key at any moment by one store. Digests have 64 bits under a secret of the box: two
keys of a full table share one with a chance of one in ten thousand millions, and nobody can choose keys that do.
Where a key stood is remembered; whoever uses that must see that its digest still stands there.
"""

from __future__ import annotations

from hashlib import blake2b
from struct import Struct
from typing import Final

from proxy.shared.layout import SECRET_AT, SECRET_BYTES, WINDOW, Memory

_WORDS: Final = Struct(f"@{WINDOW}Q")
_NOWHERE: Final = (0, 0)
_MAX_KNOWN: Final = 8192  # keys remembered; when there are more, all are forgotten


class KeySlots:
    """An array of digests at byte ``at``, with WINDOW slots more than ``num_keys``, a power of two."""

    __slots__ = ("_at", "_known", "_map", "_mask", "_seed")

    def __init__(self, memory: Memory, at: int, num_keys: int, name: str) -> None:
        """name: whose keys these are. The same key under another name is another key."""
        secret = bytes(memory.octets[8 * SECRET_AT : 8 * SECRET_AT + SECRET_BYTES])
        self._seed = blake2b(_bytes(name), digest_size=16, key=secret).digest()
        self._map = memory.map
        self._at = at
        self._mask = num_keys - 1
        self._known: dict[str, tuple[int, int]] = {}

    def find(self, key: str) -> tuple[int, int]:
        """(index of the word where the key's digest stood when it was last looked for, its digest); (0, …): nowhere."""
        return self._known.get(key, _NOWHERE)

    def look_up(self, key: str) -> tuple[int, int]:
        """As ``find``, but looks for it now."""
        known = self._known.get(key)
        if known is not None:
            digest = known[1]
            raw = digest.to_bytes(8, "little")
        else:
            raw = blake2b(_bytes(key), digest_size=8, key=self._seed).digest()
            digest = int.from_bytes(raw, "little")
            if not digest:
                raw, digest = b"\1" + raw[1:], 1  # 0 stands where nobody does
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
        begin = self._begin(digest)
        end = begin + 8 * WINDOW
        found = self._map.find(raw, begin, end)
        while found >= 0 and (found - begin) % 8:
            found = self._map.find(raw, found + 1, end)
        place = (found // 8 if found >= 0 else 0, digest)
        self._known[key] = place
        return place

    def window(self, digest: int) -> tuple[int, tuple[int, ...]]:
        """(index of its first word, the digests in the window) where a key with this digest may stand."""
        begin = self._begin(digest)
        found: tuple[int, ...] = _WORDS.unpack_from(self._map, begin)
        return begin // 8, found

    def stands(self, key: str, at: int, digest: int) -> None:
        """Remember where the key has been put."""
        self._known[key] = (at, digest)

    def _begin(self, digest: int) -> int:
        return self._at + 8 * (digest >> 8 & self._mask)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
