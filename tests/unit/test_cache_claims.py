"""Of several runs that fill one cache folder at the same time, one builds each entry; none waits for a killed one."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from modules.data.buckets import Size, resize_crop_for
from modules.data.cache.build import EncodingJob, EntryResult, build_captions, build_images
from modules.data.cache.claims import BUILDS, Claims, brief_pause, lock_file
from modules.data.cache.masks import MaskFile, MaskJob, build_masks
from modules.data.cache.store import CacheStore
from modules.data.transforms.recipe import Recipe, plain_recipe
from modules.system import file_lock
from modules.system.file_lock import FileLock

NUM_ENTRIES = 24
IN_THE_AIR = 16  # entries of a run that claims none: it builds fewer at a time
KEYS = [f"{number:02x}{'0' * 38}" for number in range(NUM_ENTRIES)]
needs_fork = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork")

Call = Callable[[], object]
Build = Callable[[Path, Call, Call], Generator[EntryResult, None, None]]


RECIPE = plain_recipe(resize_crop_for(8, 8, (Size(8, 8),)))


@dataclass(frozen=True)
class Drawn:
    path: Path = Path("any.png")
    recipe: Recipe = RECIPE

    def load_tensor(self) -> torch.Tensor:
        return torch.zeros(3, 1, 1)


def of_images(folder: Path, encoded: Call, pause: Call) -> Generator[EntryResult, None, None]:
    def encode(images_B3PP: torch.Tensor) -> torch.Tensor:
        for _ in images_B3PP:
            encoded()
        return images_B3PP

    jobs = (EncodingJob(key, Drawn()) for key in KEYS)
    return build_images(jobs, CacheStore(folder), encode, threads=2, batch_size=2, pause=lambda: ignored(pause()))


def of_captions(folder: Path, encoded: Call, pause: Call) -> Generator[EntryResult, None, None]:
    def encode(some: Sequence[object]) -> list[dict[str, torch.Tensor]]:
        for _ in some:
            encoded()
        return [{"states": torch.ones(1)} for _ in some]

    captions, store = dict.fromkeys(KEYS, "a"), CacheStore(folder)
    return build_captions(captions, store, encode, batch_size=3, threads=2, pause=lambda: ignored(pause()))


def of_masks(folder: Path, encoded: Call, pause: Call) -> Generator[EntryResult, None, None]:
    class Counted(MaskFile):
        def load(self) -> torch.Tensor:
            encoded()
            return super().load()

    jobs = [MaskJob(key, Counted(None, RECIPE, Size(8, 8), False, 8)) for key in KEYS]
    return build_masks(jobs, CacheStore(folder), threads=1, pause=lambda: ignored(pause()))


def ignored(_value: object) -> None: ...


def locks(folder: Path) -> list[Path]:
    return [*folder.glob("*/.*.lock"), *folder.glob(f"{BUILDS}/*")]


def another_run(folder: Path) -> FileLock:
    """Return the lock file of another build in the folder."""
    (folder / BUILDS).mkdir(exist_ok=True)
    return FileLock(folder / BUILDS / "other.lock")


@pytest.mark.parametrize("build", [of_images, of_captions])
def test_two_builds_in_turns_encode_what_the_other_does_not(build: Build, tmp_path: Path) -> None:
    encoded, results = list[str](), dict[str, list[EntryResult]](first=[], second=[])

    def advance(name: str) -> bool:
        result = next(builds[name], None)
        results[name] += [result] if result else []
        return result is not None

    builds = {
        "first": build(tmp_path, lambda: encoded.append("first"), lambda: pytest.fail("the second one waits for it")),
        "second": build(tmp_path, lambda: encoded.append("second"), lambda: advance("first")),
    }
    for name in ("first", "first", "first", "second", "first", "first", "first"):
        assert advance(name)
    while advance("second"):
        pass
    while advance("first"):
        pass
    assert NUM_ENTRIES <= len(encoded) <= NUM_ENTRIES + IN_THE_AIR
    assert min(map(encoded.count, builds)) >= 3, "each has done a part"
    for name, of_build in results.items():
        assert len({result.key for result in of_build}) == len(of_build)
        assert sum(not result.is_found for result in of_build) == encoded.count(name)
    assert not locks(tmp_path)


@pytest.mark.parametrize("has_locks", [True, False])
def test_entries_are_claimed_while_another_run_is_there(
    has_locks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both may build only the entries that the first run is building when the second one arrives."""
    if not has_locks:
        monkeypatch.setattr(file_lock, "_try_lock", lambda _file: None)
    jobs, store = [EncodingJob(key, Drawn()) for key in KEYS[:4]], CacheStore(tmp_path)
    claimed = [lock_file(tmp_path, job.key) for job in jobs]
    with Claims[EncodingJob](store, brief_pause) as first:
        batches = first.of([job] for job in jobs)
        assert next(batches) == (jobs[0],)
        with Claims[EncodingJob](store, brief_pause) as second:
            assert next(batches) == (jobs[1],)
            assert [file.exists() for file in claimed] == [False, True, False, False]
            assert list(second.of([jobs])) == [(jobs[0], jobs[2], jobs[3])]
        assert [file.exists() for file in claimed] == [False, True, False, False]
        assert next(batches) == (jobs[2],)
        assert not claimed[2].exists(), "the second one has left"
    assert not locks(tmp_path)


def test_entries_are_claimed_where_a_run_cannot_show_that_it_is_there(tmp_path: Path) -> None:
    (tmp_path / BUILDS).touch()
    job = EncodingJob(KEYS[0], Drawn())
    with Claims[EncodingJob](CacheStore(tmp_path), brief_pause) as claims:
        assert list(claims.of([[job]])) == [(job,)]
        assert lock_file(tmp_path, job.key).exists()


@needs_fork
@pytest.mark.parametrize("build", [of_images, of_captions, of_masks])
def test_two_processes_encode_each_entry_once(build: Build, tmp_path: Path) -> None:
    """Apart from what was in the air when the second one arrived."""
    log, begin = tmp_path / "encoded", os.pipe()

    def note() -> None:
        with log.open("ab", buffering=0) as file:
            file.write(b".")

    children = [fork(lambda: (os.read(begin[0], 1), list(build(tmp_path, note, brief_pause)))) for _ in range(2)]
    os.write(begin[1], b"..")
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]
    assert NUM_ENTRIES <= log.stat().st_size <= NUM_ENTRIES + IN_THE_AIR
    assert all(CacheStore(tmp_path).read(key) for key in KEYS)
    assert not locks(tmp_path)


def fork(run: Call) -> int:
    """Return the process that runs a function and ends."""
    if pid := os.fork():
        return pid
    try:
        run()
        os._exit(0)
    finally:
        os._exit(1)


@needs_fork
@pytest.mark.parametrize("is_second", [False, True])
def test_no_run_waits_for_a_killed_process(is_second: bool, tmp_path: Path) -> None:
    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    other = another_run(tmp_path) if is_second else None
    os.waitpid(fork(lambda: list(of_images(tmp_path, die, die))), 0)
    assert len(locks(tmp_path)) > 2 * is_second, "it was there, and held claims beside another run"
    built = list(of_images(tmp_path, lambda: None, lambda: pytest.fail("there is no other run")))
    assert [result.key for result in built if not result.is_found] == KEYS
    if other is not None:
        other.release()
    assert not locks(tmp_path)


def test_what_another_run_claims_and_does_not_build_is_built_after_a_while(tmp_path: Path) -> None:
    """It may be paused."""
    presence, lock, pauses = another_run(tmp_path), FileLock(held_file(tmp_path)), list[str]()
    with Claims[EncodingJob](CacheStore(tmp_path), lambda: pauses.append("pause"), patience_seconds=0.0) as claims:
        rounds = [list(claims.of([list(jobs)])) for jobs in claims.rounds([EncodingJob(KEYS[0], Drawn())])]
    assert [len(batches) for batches in rounds] == [0, 1]
    assert pauses == ["pause"]
    lock.release()
    presence.release()


def test_a_stop_while_another_run_builds_the_last_entries_ends_the_build(tmp_path: Path) -> None:
    presence, lock = another_run(tmp_path), FileLock(held_file(tmp_path))
    build = of_images(tmp_path, lambda: None, lambda: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        list(build)
    assert [file.name for file in locks(tmp_path)] == [held_file(tmp_path).name, "other.lock"], "its own are released"
    lock.release()
    presence.release()


def test_without_locks_the_files_of_another_computer_stop_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_lock, "_try_lock", lambda _file: None)
    monkeypatch.setattr(file_lock.platform, "node", lambda: "another computer")
    FileLock(held_file(tmp_path))
    another_run(tmp_path)
    monkeypatch.setattr(file_lock.platform, "node", lambda: "this computer")
    built = list(of_images(tmp_path, lambda: None, lambda: pytest.fail("it may have been killed")))
    assert not any(result.is_found for result in built)


def held_file(folder: Path) -> Path:
    file = lock_file(folder, KEYS[0])
    file.parent.mkdir(parents=True, exist_ok=True)
    return file
