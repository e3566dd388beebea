"""The cache keys of a dataset's versions, 20 bytes each: strings in a dictionary would take twenty times that."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np

from modules.data.cache.shards import KEY_BYTES, Keys

Place = tuple[int, int, int]
"""The example, the resolution and the variation of a version."""


class VersionKeys(Mapping[Place, str]):
    """The keys of versions by example, resolution and variation. Each is set once; a place without one has no entry."""

    def __init__(self, num_variations: Sequence[int], *, num_resolutions: int) -> None:
        """`num_variations` has the number of variations of each example at each resolution."""
        self._num_variations = np.asarray(num_variations, np.int32)
        self._num_resolutions = num_resolutions
        self._first = np.zeros(len(self._num_variations) + 1, np.int64)
        np.cumsum(self._num_variations.astype(np.int64) * num_resolutions, out=self._first[1:])
        self._keys: Keys = np.zeros((int(self._first[-1]), KEY_BYTES), np.uint8)

    def set(self, place: Place, key: str) -> None:
        """Set the key of a version."""
        self._keys[self._row(place)] = np.frombuffer(bytes.fromhex(key), np.uint8)

    def set_all(self, number: int, keys: bytes) -> None:
        """Set the keys of all versions of an example, one after the other by resolution and variation."""
        self.set_some(number, number + 1, keys)

    def set_some(self, first: int, end: int, keys: bytes) -> None:
        """Set the keys of all versions of some examples, one after the other."""
        self._keys[self._first[first] : self._first[end]] = np.frombuffer(keys, np.uint8).reshape(-1, KEY_BYTES)

    def of_examples(self, first: int, end: int) -> tuple[Keys, list[int]]:
        """Return the keys of all versions of some examples, (N, 20), zeros for those without one.

        Also returns how many of them belong to each example. The keys are a view, and change when more are set.
        """
        return self._keys[self._first[first] : self._first[end]], np.diff(self._first[first : end + 1]).tolist()

    @property
    def all_set(self) -> Keys:
        """All keys that are set, (N, 20)."""
        known: Keys = self._keys[self._keys.any(axis=1)]
        return known

    def __getitem__(self, place: Place) -> str:
        try:
            key = self._keys[self._row(place)]
        except IndexError:
            raise KeyError(place) from None
        if not key.any():
            raise KeyError(place)
        return bytes(key).hex()

    def __iter__(self) -> Iterator[Place]:
        for number, count in enumerate(self._num_variations):
            for resolution in range(self._num_resolutions):
                for variation in range(int(count)):
                    if self._keys[self._row((number, resolution, variation))].any():
                        yield number, resolution, variation

    def __len__(self) -> int:
        return int(self._keys.any(axis=1).sum())

    def examples_with(self, keys: Collection[str]) -> frozenset[int]:
        """Return the numbers of the examples that have one of the keys."""
        wanted = {bytes.fromhex(key) for key in keys}
        if not wanted:
            return frozenset()
        rows = [row for row, key in enumerate(self._keys) if key.tobytes() in wanted]
        return frozenset(map(int, np.searchsorted(self._first, rows, side="right") - 1))

    def without(self, examples: Collection[int]) -> VersionKeys:
        """Return the keys without the keys of some examples; the others are numbered anew."""
        is_kept = np.ones(len(self._num_variations), bool)
        is_kept[list(examples)] = False
        kept = VersionKeys(self._num_variations[is_kept].tolist(), num_resolutions=self._num_resolutions)
        kept._keys = self._keys[np.repeat(is_kept, self._num_variations * self._num_resolutions)]
        return kept

    def _row(self, place: Place) -> int:
        number, resolution, variation = place
        count = int(self._num_variations[number])
        if number < 0 or not 0 <= resolution < self._num_resolutions or not 0 <= variation < count:
            raise KeyError(place)
        return int(self._first[number]) + resolution * count + variation


def numbers_of(keys: Iterable[str]) -> Keys:
    """Return keys in hexadecimal digits as numbers, (N, 20)."""
    return np.frombuffer(bytes.fromhex("".join(keys)), np.uint8).reshape(-1, KEY_BYTES)


def distinct(keys_NK: Keys) -> Keys:
    """Return each key once, sorted."""
    unique: Keys = np.unique(np.ascontiguousarray(keys_NK).view(f"V{KEY_BYTES}").reshape(-1)).view(np.uint8)
    return unique.reshape(-1, KEY_BYTES)
