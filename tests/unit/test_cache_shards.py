"""Shards of a cache: the same entries in few files, found by key, whatever else happens to the folder."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from modules.data.cache import shards as module
from modules.data.cache import store as entries
from modules.data.cache.memory import MemoryStore
from modules.data.cache.shards import Keys
from modules.data.cache.store import BrokenEntryError, CacheStore, EntryStore, remove_entries


def key(number: int) -> str:
    return hashlib.blake2b(b"%d" % number, digest_size=20).hexdigest()


def value(number: int) -> torch.Tensor:
    return torch.arange(number, number + 5 + number % 3).float()


def as_numbers(*numbers: int) -> Keys:
    return np.frombuffer(bytes.fromhex("".join(map(key, numbers))), np.uint8).reshape(-1, 20)


def filled(folder: Path, numbers: range, *, entries_per_shard: int = 4) -> CacheStore:
    store = CacheStore(folder, entries_per_shard=entries_per_shard)
    for number in numbers:
        store.write(key(number), {"latents": value(number), "half": value(number).bfloat16()})
    return store


def files(folder: Path) -> dict[str, int]:
    """The number of shards, and of entries in files of their own."""
    shards = len(list(folder.glob("shards/*")))
    return {"shards": shards, "files": len([p for p in folder.rglob("*") if p.is_file()]) - shards}


def assert_holds(store: EntryStore, numbers: range) -> None:
    for number in numbers:
        read = store.read(key(number))
        assert torch.equal(read["latents"], value(number))
        assert torch.equal(read["half"], value(number).bfloat16())
        assert store.has(key(number))
        assert store.num_bytes(key(number)) > 0


def test_entries_are_joined_once_there_are_enough_of_them(tmp_path: Path) -> None:
    store = filled(tmp_path, range(11))
    assert files(tmp_path) == {"shards": 2, "files": 3}
    for reader in (store, CacheStore(tmp_path)):
        assert_holds(reader, range(11))
        sizes = reader.sizes(as_numbers(*range(20)))
        assert sizes.tolist() == [reader.num_bytes(key(n)) for n in range(20)]
        assert (sizes > 0).tolist() == [n < 11 for n in range(20)]
    assert sorted(e.key for e in store.entries()) == sorted(map(key, range(11)))
    assert {e.key: e.num_bytes for e in store.entries()} == {key(n): store.num_bytes(key(n)) for n in range(11)}
    shard = next((tmp_path / "shards").glob("*"))
    assert sorted(load_file(shard)) == ["entries", "keys", "starts"], "other programs can read it"


def test_an_entry_has_the_same_bytes_in_a_shard_as_in_a_file(tmp_path: Path) -> None:
    """Nothing of it is encoded, converted or rounded on the way."""
    plain = filled(tmp_path / "plain", range(4), entries_per_shard=0)
    joined = filled(tmp_path / "joined", range(4))
    [shard] = (tmp_path / "joined" / "shards").glob("*")
    content = shard.read_bytes()
    assert all(plain.path(key(n)).read_bytes() in content for n in range(4))
    assert [joined.num_bytes(key(n)) for n in range(4)] == [plain.num_bytes(key(n)) for n in range(4)]


def test_large_entries_are_joined_earlier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("modules.data.cache.store._MAX_SHARD_BYTES", 500)
    filled(tmp_path, range(4), entries_per_shard=1000)
    assert files(tmp_path)["shards"] == 1


def test_many_shards_are_searched_together(tmp_path: Path) -> None:
    filled(tmp_path, range(60), entries_per_shard=2)
    store = CacheStore(tmp_path)
    assert files(tmp_path) == {"shards": 30, "files": 0}
    assert_holds(store, range(60))
    assert (store.sizes(as_numbers(*range(70))) > 0).tolist() == [n < 60 for n in range(70)]
    assert not CacheStore(tmp_path).has("not a key of a shard")


def test_what_another_process_joins_is_found(tmp_path: Path) -> None:
    """Its files are gone then, and its shard is newer than what this process knows of the folder."""
    here, there = filled(tmp_path, range(4)), filled(tmp_path, range(10, 12))
    assert_holds(here, range(10, 12))
    assert not here.has(key(12))
    filled(tmp_path, range(12, 16))
    there.write(key(20), {"latents": value(20)})
    assert_holds(here, range(10, 16))
    assert (here.sizes(as_numbers(0, 12, 20, 21)) > 0).tolist() == [True, True, True, False]


def test_two_processes_that_write_the_same_entries_do_not_disturb_each_other(tmp_path: Path) -> None:
    one, other = CacheStore(tmp_path, entries_per_shard=3), CacheStore(tmp_path, entries_per_shard=4)
    for number in range(12):
        for store in (one, other):
            store.write(key(number), {"latents": value(number), "half": value(number).bfloat16()})
    for store in (one, other, CacheStore(tmp_path)):
        assert_holds(store, range(12))


def test_a_damaged_entry_is_rebuilt_beside_its_shard(tmp_path: Path) -> None:
    filled(tmp_path, range(4))
    [shard] = (tmp_path / "shards").glob("*")
    content = bytearray(shard.read_bytes())
    content[1024 + CacheStore(tmp_path).num_bytes(min(map(key, range(4)))) - 1] ^= 1  # the last value of the first one
    shard.write_bytes(content)
    store, [broken] = CacheStore(tmp_path), [n for n in range(4) if key(n) == min(map(key, range(4)))]
    with pytest.raises(BrokenEntryError, match="checksum"):
        store.read(key(broken))
    store.remove(key(broken))
    assert not store.has(key(broken))
    assert store.sizes(as_numbers(broken)).tolist() == [0]
    store.write(key(broken), {"latents": value(broken), "half": value(broken).bfloat16()})
    for reader in (store, CacheStore(tmp_path)):
        assert_holds(reader, range(4))


@pytest.mark.parametrize("entries_per_shard", [0, 2])
def test_intact_entries_under_the_keys_of_each_other_are_damaged(tmp_path: Path, entries_per_shard: int) -> None:
    """The latents of one image were trained with the caption of another, without a word."""
    store = filled(tmp_path, range(2), entries_per_shard=0)
    first, second = (store.path(key(number)) for number in range(2))
    contents = {key(0): second.read_bytes(), key(1): first.read_bytes()}
    if entries_per_shard:
        module.write_shard(tmp_path / "shards", [key(0), key(1)], contents.get)
    for path in (first, second):
        path.write_bytes(contents[path.stem])
    for number in range(2):
        with pytest.raises(BrokenEntryError, match="checksum"):
            CacheStore(tmp_path).read(key(number))


def test_the_checksum_of_an_older_version_is_without_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(entries, "_checksum", lambda tensors, key="", of=entries._checksum: of(tensors))
        filled(tmp_path, range(2), entries_per_shard=0)
    assert_holds(CacheStore(tmp_path), range(2))


@pytest.mark.parametrize("damage", ["header", "keys", "truncated", "empty", "another file"])
def test_a_damaged_shard_counts_as_missing(tmp_path: Path, damage: str) -> None:
    filled(tmp_path, range(8))
    shard = sorted((tmp_path / "shards").glob("*"))[0]
    lost = [n for n in range(8) if key(n) in {k for k, _ in module.entries_of_shard(shard)}]
    content = shard.read_bytes()
    match damage:
        case "header":
            shard.write_bytes(b"\xff" * 8 + content[8:])
        case "keys":
            shard.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        case "truncated":
            shard.write_bytes(content[:-100])
        case "empty":
            shard.write_bytes(b"")
        case "another file":
            shard.write_bytes(CacheStore(tmp_path / "other").path("aa").name.encode())
    store = CacheStore(tmp_path, entries_per_shard=4)
    assert [store.has(key(n)) for n in range(8)] == [n not in lost for n in range(8)]
    assert [e.path for e in store.entries() if not e.key] == [shard]
    for number in lost:
        with pytest.raises(BrokenEntryError):
            store.read(key(number))
        store.write(key(number), {"latents": value(number), "half": value(number).bfloat16()})
    assert_holds(store, range(8))
    assert_holds(CacheStore(tmp_path), range(8))


def test_entries_are_removed_from_their_shards(tmp_path: Path) -> None:
    """Also under the eyes of a run that has found them in the former shard."""
    running = filled(tmp_path, range(10))
    assert_holds(running, range(10))
    remove_entries([e for e in running.entries() if e.key in {key(n) for n in (0, 1, 2, 3, 5, 9)}])
    for store in (running, CacheStore(tmp_path)):
        assert_holds(store, range(6, 9))
        assert_holds(store, range(4, 5))
        with pytest.raises(BrokenEntryError):
            store.read(key(5))
    assert files(tmp_path) == {"shards": 1, "files": 1}
    remove_entries(CacheStore(tmp_path).entries())
    assert files(tmp_path) == {"shards": 0, "files": 0}


def test_entries_that_cannot_be_joined_stay_files(tmp_path: Path) -> None:
    (tmp_path / "shards").write_text("in the way")
    store = filled(tmp_path, range(9))
    assert_holds(store, range(9))
    assert_holds(CacheStore(tmp_path), range(9))


def fill_until_killed(folder: Path, at: str) -> None:
    """Fill a store in a process of its own, which is killed at its first call of a function of the store."""
    if pid := os.fork():
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
        return

    def die(*_arguments: object, **_options: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(f"modules.data.cache.{at}", die)
            filled(folder, range(10))
    finally:
        os._exit(1)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork")
@pytest.mark.parametrize(
    ("at", "num_shards"), [("shards.write_shard", 0), ("shards._header", 0), ("store.remove_quietly", 1)]
)
def test_a_process_that_is_killed_loses_no_entry_that_it_has_written(tmp_path: Path, at: str, num_shards: int) -> None:
    fill_until_killed(tmp_path, at)
    assert_holds(CacheStore(tmp_path), range(4))
    assert len(list(tmp_path.glob("shards/*.safetensors"))) == num_shards
    assert_holds(filled(tmp_path, range(10)), range(10))
    assert files(tmp_path) == {"shards": 2, "files": 2}, "what the killed process left is removed"


def test_a_store_in_memory_has_sizes_too() -> None:
    store = MemoryStore()
    store.write(key(1), {"latents": torch.ones(3)})
    assert store.sizes(as_numbers(0, 1)).tolist() == [0, 12]
