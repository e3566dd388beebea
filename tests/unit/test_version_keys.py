"""The keys of versions by example, resolution and variation."""

from __future__ import annotations

import pytest

from modules.data.cache.version_keys import VersionKeys, distinct, numbers_of

COUNTS = (1, 3, 2)
PLACES = [(n, r, v) for n, count in enumerate(COUNTS) for r in range(2) for v in range(count)]
KEYS = {place: f"{number + 1:040x}" for number, place in enumerate(PLACES)}


@pytest.fixture
def keys() -> VersionKeys:
    keys = VersionKeys(COUNTS, num_resolutions=2)
    for place, key in KEYS.items():
        keys.set(place, key)
    return keys


def test_they_are_a_mapping(keys: VersionKeys) -> None:
    assert dict(keys) == KEYS
    assert len(keys) == len(PLACES)
    for place in ((0, 0, 1), (0, 2, 0), (3, 0, 0), (1, 0, -1), (-1, 0, 0)):
        assert place not in keys


def test_the_keys_of_an_example_are_set_and_read_together(keys: VersionKeys) -> None:
    again = VersionKeys(COUNTS, num_resolutions=2)
    for number in (0, 2):
        of_example = [key for place, key in KEYS.items() if place[0] == number]
        again.set_all(number, bytes.fromhex("".join(of_example)))
    assert dict(again) == {place: key for place, key in KEYS.items() if place[0] != 1}
    rows, counts = again.of_examples(1, 3)
    assert counts == [6, 4]
    assert not rows[:6].any()
    assert [row.tobytes().hex() for row in rows[6:]] == [key for place, key in KEYS.items() if place[0] == 2]
    assert sorted(row.tobytes().hex() for row in distinct(numbers_of([*KEYS.values(), *KEYS.values()]))) == sorted(
        KEYS.values()
    )
    assert len(again.all_set) == 6


def test_a_place_without_a_key_has_none() -> None:
    keys = VersionKeys(COUNTS, num_resolutions=2)
    keys.set((1, 1, 2), KEYS[1, 1, 2])
    assert dict(keys) == {(1, 1, 2): KEYS[1, 1, 2]}
    assert keys.get((1, 1, 1)) is None


def test_examples_are_found_by_their_keys_and_left_out(keys: VersionKeys) -> None:
    broken = keys.examples_with([KEYS[1, 0, 2], KEYS[1, 1, 0], "f" * 40])
    assert broken == {1}
    left = dict(keys.without(broken))
    assert left == {(n // 2, r, v): key for (n, r, v), key in KEYS.items() if n != 1}
    assert keys.examples_with([]) == frozenset()
