"""A set of keys that takes 16 bytes for each: a run of millions of rows remembers which of them it has."""

import hashlib
from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import Any

WIDTH = 16  # bytes of a digest: of 10^9 keys two share one with a probability of 10^-21
BUCKETS = 2**12


class Keys:
    """Keys that can be added, taken out and asked for, but not listed: only a digest of each is kept."""

    def __init__(self, keys: Iterable[str] = ()):
        self._digests: defaultdict[int, bytearray] = defaultdict(bytearray)
        self._count = 0
        for key in keys:
            self.add(key)

    def add(self, key: str) -> None:
        digest, bucket = self._place(key)
        if _find(digest, bucket) < 0:
            bucket += digest
            self._count += 1

    def discard(self, key: str) -> None:
        """Takes a key out, where it is there."""
        digest, bucket = self._place(key)
        if (at := _find(digest, bucket)) >= 0:
            bucket[at : at + WIDTH] = bucket[-WIDTH:]
            del bucket[-WIDTH:]
            self._count -= 1

    def __contains__(self, key: str) -> bool:
        return _find(*self._place(key)) >= 0

    def __len__(self) -> int:
        return self._count

    def __eq__(self, other: Any) -> bool:
        """Whether a collection has the same keys."""
        if not isinstance(other, Collection) or isinstance(other, str):
            return NotImplemented
        return len(self) == len(set(other)) and all(key in self for key in other)

    __hash__ = None  # type: ignore[assignment]

    def _place(self, key: str) -> tuple[bytes, bytearray]:
        digest = hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=WIDTH).digest()
        return digest, self._digests[int.from_bytes(digest[:2], "big") % BUCKETS]


def _find(digest: bytes, bucket: bytearray) -> int:
    """Where in the bucket a digest begins, -1 where it is not there."""
    at = bucket.find(digest)
    while at % WIDTH and at >= 0:
        at = bucket.find(digest, at + 1)
    return at
