"""The datasets of a run of several processes: one of them scans the images, and the others map its results.

The main process writes its examples to a file, and sends it to the first process of each other machine. All processes
of a machine map their file into memory, so only one copy of it is in memory, and then it is removed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from modules.config.schema import Config
from modules.config.usage import data_in_use
from modules.data.archives import status_of
from modules.data.cache.image_index import ImageIndex
from modules.data.dataset import Dataset
from modules.data.datasets import Datasets, build_datasets
from modules.data.stored_examples import map_examples, write_examples
from modules.formats.headers import UnreadableFileError
from modules.system.atomic import remove_quietly
from modules.system.errors import DarkroomError
from modules.system.file_errors import describe_file_error, plain_reason
from modules.system.leftovers import temporary_path
from modules.system.ranks import Rank
from trainer.commands import StopAgreed, StopRequested
from trainer.data.datasets import cache_folder, dataset_settings, is_current, scan_watch, up_to_date
from trainer.events import Event
from trainer.ranks import LostProcessError, Ranks

_SENT_AT_ONCE = 2**26  # bytes
_MAX_LOOKED_AT = 200  # images on another machine


@dataclass(frozen=True, slots=True)
class _Outline:
    """The datasets of the main process without their examples, and the size of the file with those."""

    training: Dataset
    validation: Dataset
    fingerprint: tuple[str, ...]
    num_bytes: int


@dataclass(frozen=True, slots=True)
class _ScanResult:
    """The result of the main process's scan: the outline, and the index."""

    outline: _Outline
    index: ImageIndex | None


@dataclass(frozen=True, slots=True)
class _Failure:
    """Why the main process has no datasets; `is_stopped`: because the run is to stop."""

    message: str
    advice: str
    is_stopped: bool = False


def share_datasets(ranks: Ranks, config: Config, scan: Callable[[], Datasets]) -> Datasets:
    """Return the datasets that `scan` returns in the main process, in all processes of a run.

    What `scan` raises is raised in the main process; all others then raise StopAgreed or LostProcessError. Raises
    DarkroomError in a process that cannot read the examples, or does not find the same images.
    """
    if ranks.rank.is_alone:
        return scan()
    with _file_of_machine(ranks.rank, config) as file:
        result = _scan_and_write(ranks, scan, file) if ranks.rank.is_main and file is not None else None
        outline = _outline_of_main(ranks, result.outline if result is not None else None)
        if ranks.rank.num_local < ranks.rank.world_size:
            _send_to_machines(ranks, file, outline.num_bytes)
        files = ranks.gather((ranks.rank.machine, file))
        here = next(path for machine, path in files if path is not None and machine == ranks.rank.machine)
        datasets = _map(here, ranks.rank, config, outline)
        if ranks.rank.is_first_here and not ranks.rank.is_main:
            _require_caches(config, files[0][1], ranks.rank)
            _require_images(datasets, ranks.rank)
        ranks.gather(None)  # the file is removed once all of them have mapped it
    return datasets if result is None else replace(datasets, index=result.index)


def up_to_date_in_all(
    datasets: Datasets, ranks: Ranks, config: Config, emit: Callable[[Event], None], check: Callable[[], None]
) -> Datasets:
    """Return the datasets of `up_to_date`. Of several processes the main one looks, and scans if files have changed."""
    if ranks.rank.is_alone:
        return up_to_date(datasets, emit, check)
    if ranks.from_main(ranks.rank.is_main and is_current(datasets, emit)):
        return datasets
    return share_datasets(
        ranks, config, lambda: build_datasets(datasets.settings, datasets.index, scan_watch(emit, check))
    )


@contextmanager
def _file_of_machine(rank: Rank, config: Config) -> Iterator[Path | None]:
    """Yield a free place for a file to the first process of a machine, and remove the file in the end."""
    if not rank.is_first_here:
        yield None
        return
    folder = cache_folder(config) or Path(tempfile.gettempdir())
    folder.mkdir(parents=True, exist_ok=True)
    file = temporary_path(folder / "examples.safetensors")
    try:
        yield file
    finally:
        remove_quietly(file)


def _scan_and_write(ranks: Ranks, scan: Callable[[], Datasets], file: Path) -> _ScanResult:
    """Scan and write the file in the main process. If that fails, the others, which wait for the outline, learn why."""
    try:
        datasets = scan()
        write_examples(file, {"training": datasets.training.examples, "validation": datasets.validation.examples})
    except Exception as error:
        with suppress(LostProcessError):  # the reason is more important
            ranks.from_main(_failure_of(error))
        raise
    training, validation = (
        replace(dataset, examples=(), buckets=(), skipped=()) for dataset in (datasets.training, datasets.validation)
    )
    return _ScanResult(_Outline(training, validation, datasets.fingerprint, file.stat().st_size), datasets.index)


def _failure_of(error: Exception) -> _Failure:
    message, advice = str(error), ""
    if isinstance(error, DarkroomError):
        message, advice = error.message, error.advice
    elif isinstance(error, OSError):
        message, advice = describe_file_error(error)
    return _Failure(message or plain_reason(error), advice, is_stopped=isinstance(error, StopRequested))


def _outline_of_main(ranks: Ranks, outline: _Outline | None) -> _Outline:
    received: _Outline | _Failure | None = ranks.from_main(outline)
    if isinstance(received, _Failure):
        if received.is_stopped:
            raise StopAgreed
        raise LostProcessError(
            f"The process 1 of {ranks.rank.world_size} failed: {received.message}", advice=received.advice
        )
    assert received is not None, "the main process has one"
    return received


def _send_to_machines(ranks: Ranks, file: Path | None, num_bytes: int) -> None:
    """Send the file of the main process to the others; the first process of each machine writes it."""
    is_main = ranks.rank.is_main
    with nullcontext() if file is None else file.open("rb" if is_main else "wb") as content:
        for start in range(0, num_bytes, _SENT_AT_ONCE):
            part = torch.empty(min(_SENT_AT_ONCE, num_bytes - start), dtype=torch.uint8)
            if is_main and content is not None:
                part = torch.frombuffer(bytearray(content.read(len(part))), dtype=torch.uint8)
            ranks.copy_from_main([part])
            if content is not None and not is_main:
                content.write(part.numpy().tobytes())


def _map(file: Path, rank: Rank, config: Config, outline: _Outline) -> Datasets:
    try:
        examples = map_examples(file)
    except (OSError, UnreadableFileError) as error:
        raise DarkroomError(
            f"The {rank} cannot read the list of images that the first process of its machine has written: "
            f"{plain_reason(error)}.",
            advice=f"All processes of a machine must be able to read {file.parent}.",
        ) from error
    settings = dataset_settings(config)
    training = outline.training.with_stored(examples["training"])
    validation = outline.validation.with_stored(examples["validation"])
    return Datasets(settings, outline.fingerprint, training, validation, settings.plans_of(training))


def _require_caches(config: Config, file_of_main: Path | None, rank: Rank) -> None:
    """Raise DarkroomError if this machine does not share the cache folder of the first one: each fills a part of it."""
    data, folder = data_in_use(config), cache_folder(config)
    if folder is None or file_of_main is None or not (data.latent_cache or data.text_cache):
        return
    if (folder / file_of_main.name).exists():
        return
    raise DarkroomError(
        f"Machine {rank.machine + 1} does not share the cache folder {folder} with the first one.",
        advice="Choose a folder that all machines share at the same path, or caches in memory.",
    )


def _require_images(datasets: Datasets, rank: Rank) -> None:
    """Raise DarkroomError if some of the images are not on this machine, or have another size there."""
    for examples in (datasets.training.examples, datasets.validation.examples):
        for image in (e.image for e in examples[:: max(1, len(examples) // _MAX_LOOKED_AT)] if e.image.has_image):
            try:
                num_bytes = status_of(image.path).size_bytes
            except OSError:
                num_bytes = -1
            if num_bytes != image.size_bytes:
                found = "no" if num_bytes < 0 else "another"
                raise DarkroomError(
                    f"Machine {rank.machine + 1} has {found} image {image.path}, on which the run trains.",
                    advice="All machines need the same files at the same paths. Copy the folders of the concepts "
                    "again, or use a folder that all of them share.",
                )
