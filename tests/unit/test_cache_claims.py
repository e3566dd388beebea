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
from modules.data.cache.claims import Claims
from modules.data.cache.store import CacheStore
from modules.data.transforms.recipe import Recipe, plain_recipe
from modules.system import file_lock
from modules.system.file_lock import FileLock

NUM_ENTRIES = 24
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


def ignored(_value: object) -> None: ...


def locks(folder: Path) -> list[Path]:
    return list(folder.glob("*/.*.lock"))


@pytest.mark.parametrize("build", [of_images, of_captions])
def test_two_builds_in_turns_encode_each_entry_once(build: Build, tmp_path: Path) -> None:
    encoded, results = list[str](), dict[str, list[EntryResult]](first=[], second=[])

    def advance(name: str) -> bool:
        result = next(builds[name], None)
        results[name] += [result] if result else []
        return result is not None

    builds = {
        "first": build(tmp_path, lambda: encoded.append("first"), lambda: pytest.fail("the second one waits for it")),
        "second": build(tmp_path, lambda: encoded.append("second"), lambda: advance("first")),
    }
    for _ in range(3):
        assert advance("first")
    while advance("second"):
        pass
    while advance("first"):
        pass
    assert len(encoded) == NUM_ENTRIES
    assert min(map(encoded.count, builds)) >= 3, "each has done a part"
    for name, of_build in results.items():
        assert len({result.key for result in of_build}) == len(of_build)
        assert sum(not result.is_found for result in of_build) == encoded.count(name)
    assert not locks(tmp_path)


@needs_fork
@pytest.mark.parametrize("build", [of_images, of_captions])
def test_two_processes_encode_each_entry_once(build: Build, tmp_path: Path) -> None:
    log, begin = tmp_path / "encoded", os.pipe()

    def note() -> None:
        with log.open("ab", buffering=0) as file:
            file.write(b".")

    children = [fork(lambda: (os.read(begin[0], 1), list(build(tmp_path, note, lambda: None)))) for _ in range(2)]
    os.write(begin[1], b"..")
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]
    assert log.stat().st_size == NUM_ENTRIES
    assert all(CacheStore(tmp_path).has(key) for key in KEYS)


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
def test_no_run_waits_for_a_killed_process(tmp_path: Path) -> None:
    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    os.waitpid(fork(lambda: list(of_images(tmp_path, die, die))), 0)
    assert locks(tmp_path), "it held claims"
    built = list(of_images(tmp_path, lambda: None, lambda: pytest.fail("there is no other run")))
    assert [result.key for result in built if not result.is_found] == KEYS
    assert not locks(tmp_path)


def test_what_another_run_claims_and_does_not_build_is_built_after_a_while(tmp_path: Path) -> None:
    """It may be paused."""
    lock, pauses = FileLock(held_file(tmp_path)), list[str]()
    with Claims[EncodingJob](CacheStore(tmp_path), lambda: pauses.append("pause"), patience_seconds=0.0) as claims:
        rounds = [list(claims.of([list(jobs)])) for jobs in claims.rounds([EncodingJob(KEYS[0], Drawn())])]
    assert [len(batches) for batches in rounds] == [0, 1]
    assert pauses == ["pause"]
    lock.release()


def test_a_stop_while_another_run_builds_the_last_entries_ends_the_build(tmp_path: Path) -> None:
    lock = FileLock(held_file(tmp_path))
    build = of_images(tmp_path, lambda: None, lambda: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        list(build)
    assert locks(tmp_path) == [held_file(tmp_path)], "its own are released"
    lock.release()


def test_without_locks_the_files_of_another_computer_stop_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_lock, "_try_lock", lambda _file: None)
    monkeypatch.setattr(file_lock.platform, "node", lambda: "another computer")
    FileLock(held_file(tmp_path))
    monkeypatch.setattr(file_lock.platform, "node", lambda: "this computer")
    built = list(of_images(tmp_path, lambda: None, lambda: pytest.fail("it may have been killed")))
    assert not any(result.is_found for result in built)


def held_file(folder: Path) -> Path:
    file = CacheStore(folder).lock_file(KEYS[0])
    file.parent.mkdir(parents=True, exist_ok=True)
    return file
