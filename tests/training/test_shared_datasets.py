"""The processes of a run train on the images that one of them has scanned."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch

from modules.config.schema import Config
from modules.data.datasets import Datasets
from modules.data.stored_examples import StoredExamples
from modules.system.errors import DarkroomError
from modules.system.ranks import Rank
from tests.builders.configs import laid_over, small_config
from tests.builders.images import draw_folder
from trainer.commands import StopAgreed, StopRequested
from trainer.data.datasets import datasets_of
from trainer.data.shared_datasets import share_datasets, up_to_date_in_all
from trainer.events import Event
from trainer.ranks import LostProcessError, OneProcess

T = TypeVar("T")


class Meeting:
    """Where the threads that stand for processes exchange values, until one of them leaves."""

    def __init__(self, num_processes: int) -> None:
        self._values: list[list[Any]] = [[] for _ in range(num_processes)]
        self._has_changed = threading.Condition()
        self._is_left = False

    def exchange(self, index: int, value: Any) -> list[Any]:
        with self._has_changed:
            self._values[index].append(value)
            number = len(self._values[index])
            self._has_changed.notify_all()
            self._has_changed.wait_for(
                lambda: self._is_left or all(len(v) >= number for v in self._values), timeout=120
            )
            if any(len(v) < number for v in self._values):
                raise LostProcessError("Another process has ended.")
            return [values[number - 1] for values in self._values]

    def leave(self) -> None:
        with self._has_changed:
            self._is_left = True
            self._has_changed.notify_all()


@dataclass
class OneOfThreads(OneProcess):
    """A process among several, which are threads of this one."""

    meeting: Meeting
    rank: Rank

    def from_main(self, value: T) -> T:
        return self.meeting.exchange(self.rank.index, value)[0]

    def gather(self, value: T) -> list[T]:
        return self.meeting.exchange(self.rank.index, value)

    def copy_from_main(self, tensors: Sequence[torch.Tensor]) -> None:
        for tensor in tensors:
            tensor.copy_(self.meeting.exchange(self.rank.index, tensor)[0])


def share(
    config: Config, ranks: Sequence[Rank], scan: Callable[[], Datasets], *, of_others: Config | None = None
) -> list[Any]:
    """Return the datasets of all processes, or what they raise. `of_others` is the config of other machines."""
    meeting = Meeting(len(ranks))

    def work(rank: Rank) -> Any:
        def scan_here() -> Datasets:
            assert rank.is_main, "only the main process scans"
            return scan()

        try:
            return share_datasets(
                OneOfThreads(meeting, rank), (of_others if rank.machine else None) or config, scan_here
            )
        except (DarkroomError, StopRequested, OSError) as error:
            meeting.leave()
            return error

    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(work, ranks))


@pytest.fixture
def config(tmp_path: Path) -> Config:
    images = draw_folder(tmp_path / "images", sizes=[(64, 64)] * 5 + [(96, 64)] * 3, captions=["a disc", "two"])
    concepts = [{"path": str(images)}, {"path": str(images), "kind": "validation"}]
    return small_config(tmp_path, model=tmp_path / "model", images=images, concepts=concepts)


ON_ONE = [Rank(0, 2, 0, 2), Rank(1, 2, 1, 2)]
ON_TWO = [Rank(0, 3, 0, 2, 0), Rank(1, 3, 1, 2, 0), Rank(2, 3, 0, 1, 1)]


@pytest.mark.parametrize("ranks", [ON_ONE, ON_TWO])
@pytest.mark.parametrize("location", ["disk", "memory"])
def test_all_processes_have_the_images_that_the_main_one_has_scanned(
    config: Config, ranks: list[Rank], location: str
) -> None:
    config = config.model_copy(update={"data": config.data.model_copy(update={"cache_location": location})})
    scanned = datasets_of(config)
    found = share(config, ranks, lambda: scanned)
    for datasets in found:
        assert isinstance(datasets.training.examples, StoredExamples)
        assert tuple(datasets.training.examples) == scanned.training.examples
        assert tuple(datasets.validation.examples) == scanned.validation.examples
        assert datasets.plans.accumulation_groups(0) == scanned.plans.accumulation_groups(0)
        assert datasets.is_current()
    assert [datasets.index is not None for datasets in found] == [rank.is_main for rank in ranks]
    assert [p.name for p in Path(config.general.cache_dir).glob("*")] == [], "the file is removed"


def test_a_machine_without_the_images_is_named(config: Config) -> None:
    scanned = datasets_of(config)
    image = scanned.training.examples[3].image.path
    image.unlink()
    found = share(config, ON_TWO, lambda: scanned)
    assert found[2].message == f"Machine 2 has no image {image}, on which the run trains."
    image.write_bytes(b"another")
    found = share(config, ON_TWO, lambda: scanned)
    assert found[2].message == f"Machine 2 has another image {image}, on which the run trains."


def test_a_machine_with_caches_of_its_own_is_named(config: Config, tmp_path: Path) -> None:
    scanned = datasets_of(config)
    others = laid_over(config, {"general": {"cache_dir": str(tmp_path / "own")}})
    found = share(config, ON_TWO, lambda: scanned, of_others=others)
    assert found[2].message == f"Machine 2 does not share the cache folder {tmp_path / 'own'} with the first one."
    uncached = {"data": {"latent_cache": False, "text_cache": False}}
    found = share(laid_over(config, uncached), ON_TWO, lambda: scanned, of_others=laid_over(others, uncached))
    assert all(isinstance(datasets, Datasets) for datasets in found)


@pytest.mark.parametrize(
    ("raised", "words"),
    [
        (DarkroomError("No images."), "The process 1 of 2 failed: No images."),
        (FileNotFoundError(2, "no", "images"), "The process 1 of 2 failed: images does not exist."),
    ],
)
def test_why_the_main_process_cannot_scan_is_said_by_all(config: Config, raised: Exception, words: str) -> None:
    def scan() -> Datasets:
        raise raised

    main, other = share(config, ON_ONE, scan)
    assert main is raised
    assert isinstance(other, LostProcessError)
    assert other.message == words


def test_a_stop_of_the_scan_stops_all(config: Config) -> None:
    def scan() -> Datasets:
        raise StopRequested

    main, other = share(config, ON_ONE, scan)
    assert (type(main), type(other)) == (StopRequested, StopAgreed)


def test_images_that_change_meanwhile_are_scanned_by_the_main_process(config: Config) -> None:
    warnings: list[Event] = []

    def work(rank: Rank) -> int:
        ranks = OneOfThreads(meeting, rank)
        datasets = share_datasets(ranks, config, lambda: datasets_of(config))
        if rank.is_main:
            first = datasets.training.examples[0].image.path
            shutil.copy(first, first.with_name("another.png"))
        ranks.gather(None)
        datasets = up_to_date_in_all(datasets, ranks, config, warnings.append, lambda: None)
        again = up_to_date_in_all(datasets, ranks, config, warnings.append, lambda: None)
        assert again is datasets
        return len(datasets.training.examples)

    meeting = Meeting(2)
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(work, ON_ONE)) == [9, 9]
    assert len(warnings) == 1
