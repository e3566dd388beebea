"""`python -m benchmarks dataset`: seconds and memory of starts with many images, each stage in a process of its own.

The images are simulated: PNG files with a real header and no pixels, and captions. The caches are filled with zeros.
The stage "filling" writes them to shards directly, which takes minutes for a million images; caching takes an hour.
"""

from __future__ import annotations

import argparse
import gc
import io
import json
import random
import resource
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

import psutil

from modules.config.codec import decode
from modules.config.migrations.chain import NEWEST_DARKROOM
from modules.config.schema import Config
from modules.data.dataset import ConceptFacts, Dataset
from modules.data.stored_examples import map_examples, write_examples
from modules.system.paths import PROGRAM_ROOT, from_caller
from trainer.events import Event, PhaseChanged, RunFailed, StepFinished

if TYPE_CHECKING:
    import torch

_EXAMPLES = "examples.safetensors"
_IN_A_FOLDER = 2_000
_WORDS = ("a photo of", "portrait", "castle", "river", "autumn light", "film grain", "two people", "blue", "at night")
_SIDES_PX = (512, 640, 768, 896, 1024, 1152, 1280, 1536, 1920, 2048)
STAGES = ("first scan", "second scan", "another process", "caching", "start")
_FILLING = "filling"


def main(arguments: Sequence[str]) -> int:
    """Measure the stages and print a line for each part of them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks dataset", description=__doc__)
    parser.add_argument("--images", type=int, default=100_000, help="how many images (default: 100000)")
    parser.add_argument(
        "--stages",
        nargs="+",
        choices=(*STAGES, _FILLING),
        default=list(STAGES),
        help=f'measure only these, in order; "{_FILLING}" in place of "caching" fills the caches without measuring how '
        "their files are written",
    )
    parser.add_argument(
        "--in",
        dest="kind",
        choices=("folders", "tar", "parquet"),
        default="folders",
        help="what holds the images (default: folders)",
    )
    parser.add_argument("--folder", help="keep images and caches here, for the next call (default: a temporary folder)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="darkroom-benchmark-") as name:
        folder = Path(from_caller(options.folder)) if options.folder else Path(name)
        for stage in measure_stages(folder, options.images, options.stages, kind=options.kind):
            grown = f", {stage.grown_bytes / 1e6:,.1f} MB of them for the images" if stage.grown_bytes else ""
            sys.stdout.write(
                f"{stage.name}: {options.images:,} images, at most {stage.peak_bytes / 1e6:,.0f} MB{grown}\n"
            )
            for part, (seconds, cpu_seconds) in stage.seconds.items():
                sys.stdout.write(f"  {part:24} {seconds:8.1f} s  {cpu_seconds:8.1f} s of CPU time\n")
            sys.stdout.flush()
    return 0


@dataclass(frozen=True, slots=True)
class Stage:
    """The seconds and the CPU time that a process took, by part, and its highest memory.

    `grown_bytes` is the growth of the memory that it does not share with other processes; 0 if it was not measured.
    """

    name: str
    seconds: dict[str, tuple[float, float]]
    peak_bytes: int
    grown_bytes: int = 0


def write_images(folder: Path, num_images: int) -> None:
    """Write PNG files of many sizes that consist of a real header only, with captions, 2,000 to a folder."""
    for number, (name, content, text) in enumerate(_simulated_images(num_images)):
        here = folder / f"{number // _IN_A_FOLDER:04d}"
        if number % _IN_A_FOLDER == 0:
            here.mkdir(parents=True)
        (here / f"{name}.png").write_bytes(content)
        (here / f"{name}.txt").write_text(text, encoding="utf-8")


def _header(width_px: int, height_px: int, number: int) -> bytes:
    """Return a PNG of a size that ends after its header and a few bytes of its own."""
    file = io.BytesIO(b"\x89PNG\r\n\x1a\n")
    file.seek(0, io.SEEK_END)
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", width_px, height_px, 8, 2, 0, 0, 0)),
        (b"IDAT", struct.pack(">Q", number)),
        (b"IEND", b""),
    )
    for kind, content in chunks:
        file.write(struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content)))
    return file.getvalue()


def _simulated_images(num_images: int) -> Iterator[tuple[str, bytes, str]]:
    """Yield the name, the content and the caption of each image."""
    draw = random.Random(1)
    for number in range(num_images):
        content = _header(draw.choice(_SIDES_PX), draw.choice(_SIDES_PX), number)
        words = ", ".join(draw.sample(_WORDS, 4))
        yield f"image_{number:07d}", content, f"{words}, number {number}\n"


def _write_shards(folder: Path, num_images: int) -> None:
    """Write the images in tar shards of 2,000."""
    folder.mkdir(parents=True)
    images = _simulated_images(num_images)
    for number in range(-(-num_images // _IN_A_FOLDER)):
        with tarfile.open(folder / f"{number:04d}.tar", "w") as shard:
            for name, content, text in islice(images, _IN_A_FOLDER):
                for suffix, field in ((".png", content), (".txt", text.encode())):
                    member = tarfile.TarInfo(name + suffix)
                    member.size = len(field)
                    shard.addfile(member, io.BytesIO(field))


def _write_tables(folder: Path, num_images: int) -> None:
    """Write the images in Parquet files of 2,000."""
    pyarrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    folder.mkdir(parents=True)
    images = _simulated_images(num_images)
    for number in range(-(-num_images // _IN_A_FOLDER)):
        rows = [{"image": {"bytes": c, "path": None}, "text": text} for _, c, text in islice(images, _IN_A_FOLDER)]
        table = pyarrow.Table.from_pylist(rows)
        parquet.write_table(table, folder / f"{number:04d}.parquet", row_group_size=500)


_WRITERS = {"folders": write_images, "tar": _write_shards, "parquet": _write_tables}


def measure_stages(
    folder: Path, num_images: int, stages: Sequence[str] = STAGES, *, kind: str = "folders"
) -> Iterator[Stage]:
    """Yield stages of starts with that many images, written below a folder unless they are there already."""
    if not (folder / "images").exists():
        _WRITERS[kind](folder / "images", num_images)
    for name in stages:
        command = [sys.executable, "-m", "benchmarks.dataset_size", name, str(folder)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=PROGRAM_ROOT)
        result = json.loads(done.stdout)
        seconds = {part: tuple(both) for part, both in result["seconds"].items()}
        yield Stage(name, seconds, result["peak_bytes"], result["grown_bytes"])


def _config(folder: Path) -> Config:
    tree = {
        "general": {"cache_dir": str(folder / "cache"), "workspace_dir": str(folder / "runs"), "train_device": "cpu"},
        "model": {"base_model": "demo/model"},
        "concepts": [{"path": str(folder / "images"), "include_subfolders": True}],
        "training": {"batch_size": 4},
        "data": {"resolution_px": [64], "bucket_step_px": 16},
        "sampling": {"every": {"unit": "never"}, "at_start": False, "at_end": False},
        "backup": {"every": {"unit": "never"}},
        "output": {"destination": str(folder / "lora.safetensors")},
        "parts": {"text_encoder": {"train": False}},
    }
    return decode({"darkroom_version": NEWEST_DARKROOM, **tree}).config


class _Laps:
    """The seconds of the parts of a stage, of the clock and of this process's CPU time."""

    def __init__(self) -> None:
        self.seconds: dict[str, tuple[float, float]] = {}
        self.grown_bytes = 0
        self._since = time.monotonic(), time.process_time()

    def lap(self, part: str) -> None:
        """Add the time since the last lap to a part."""
        now, so_far = (time.monotonic(), time.process_time()), self.seconds.get(part, (0.0, 0.0))
        self.seconds[part] = so_far[0] + now[0] - self._since[0], so_far[1] + now[1] - self._since[1]
        self._since = now


def _scan(folder: Path, laps: _Laps, *, is_first: bool) -> None:
    from trainer.data.datasets import datasets_of

    datasets = datasets_of(_config(folder))
    laps.lap("scan")
    if is_first:
        assert datasets.index is not None
        datasets.index.save()
        laps.lap("save")
        return
    assert datasets.is_current()
    laps.lap("compare")
    datasets.plans.accumulation_groups(0)
    laps.lap("plan of an epoch")
    write_examples(folder / _EXAMPLES, {"training": datasets.training.examples})
    laps.lap("write for others")


def _map(folder: Path, laps: _Laps) -> None:
    """Map the images that another process has scanned, and plan an epoch, as the second process of a run does."""
    from trainer.data.datasets import dataset_settings

    settings = dataset_settings(_config(folder))
    before = _own_bytes()
    examples = map_examples(folder / _EXAMPLES)["training"]
    facts = ConceptFacts("", 1.0, 1.0, 0, len(examples))
    dataset = Dataset((), (facts,), 1).with_stored(examples)
    laps.lap("map")
    assert all(example.image.captions for example in examples)
    laps.grown_bytes = _own_bytes() - before
    laps.lap("take each image")
    settings.plans_of(dataset).accumulation_groups(0)
    laps.lap("plan of an epoch")


def _own_bytes() -> int:
    """Return the memory of this process, without the pages of files, which it may share with others."""
    memory = psutil.Process().memory_info()
    return int(memory.rss - memory.shared)


def _fill(folder: Path, laps: _Laps) -> None:
    """Fill the caches of the simulated images with zeros in place of the encoders' outputs."""
    import torch

    from modules.data.cache.build import ImageFile
    from modules.data.conditioning import Conditioning
    from trainer.commands import CommandDesk
    from trainer.data.encoders import Encoders
    from trainer.launch import RunRequest
    from trainer.run.execute import execute_guarded

    def no_pixels(image: ImageFile) -> torch.Tensor:
        return torch.zeros(3, image.recipe.bucket.height_px, image.recipe.bucket.width_px)

    def no_latents(_encoders: Encoders, images_B3PP: torch.Tensor) -> torch.Tensor:
        return torch.zeros(len(images_B3PP), 4, images_B3PP.shape[2] // 8, images_B3PP.shape[3] // 8)

    known: list[Conditioning] = []

    def no_states(encoders: Encoders, captions: Sequence[str]) -> list[Conditioning]:
        if not known:
            with torch.no_grad():
                known.append(encoders.family.encode_prompts([""]))
        return known * len(captions)

    with (
        patch.object(ImageFile, "load_tensor", no_pixels),
        patch.object(Encoders, "latents", no_latents),
        patch.object(Encoders, "captions", no_states),
    ):
        request = RunRequest(_config(folder), kind="cache", in_window=False)
        execute_guarded(request, emit=lambda event: _by_phase(event, laps), desk=CommandDesk())
    laps.lap("end")


def _fill_shards(folder: Path, laps: _Laps) -> None:
    """Fill the caches as `_fill` does, but without a file for each entry: all entries of a shape are the same zeros."""
    from modules.data.cache.entry_files import SHARDS
    from modules.data.cache.shards import write_shard
    from modules.data.cache.store import ENTRIES_PER_SHARD, CacheStore

    plain = CacheStore.write
    known: dict[object, tuple[bytes, dict[str, torch.Tensor]]] = {}
    waiting: dict[Path, dict[str, bytes]] = {}

    def write(store: CacheStore, key: str, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        shape = (store.folder, *((name, tensor.shape, tensor.dtype) for name, tensor in sorted(tensors.items())))
        if shape not in known:
            kept = plain(store, key, tensors)
            known[shape] = store.path(key).read_bytes(), kept
        content, kept = known[shape]
        entries = waiting.setdefault(store.folder, {})
        entries[key] = content
        if len(entries) == ENTRIES_PER_SHARD:
            write_rest(store.folder)
        return kept

    def write_rest(place: Path) -> None:
        entries = waiting.pop(place)
        write_shard(place / SHARDS, entries, entries.get)

    with patch.object(CacheStore, "write", write):
        _fill(folder, laps)
    for place in list(waiting):
        write_rest(place)
    laps.lap("last shards")


def _start(folder: Path, laps: _Laps) -> None:
    """Start a run and stop it after its first step."""
    from trainer.commands import CommandDesk, Stop
    from trainer.launch import RunRequest
    from trainer.run.execute import execute_guarded

    desk = CommandDesk()

    def emit(event: Event) -> None:
        _by_phase(event, laps)
        if isinstance(event, StepFinished):
            laps.lap("until the first step")
            desk.put(Stop())

    execute_guarded(RunRequest(_config(folder), in_window=False), emit=emit, desk=desk)
    laps.lap("end")


def _by_phase(event: Event, laps: _Laps) -> None:
    if isinstance(event, PhaseChanged):
        laps.lap(f"until {event.phase}")
    if isinstance(event, RunFailed):
        raise RuntimeError(event.message)


_RUNS: dict[str, Callable[[Path, _Laps], None]] = {
    "first scan": partial(_scan, is_first=True),
    "second scan": partial(_scan, is_first=False),
    "another process": _map,
    "caching": _fill,
    _FILLING: _fill_shards,
    "start": _start,
}


def _run(name: str, folder: Path) -> None:
    gc.disable()  # as it is in a run
    laps = _Laps()
    _RUNS[name](folder, laps)
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    sys.stdout.write(json.dumps({"seconds": laps.seconds, "peak_bytes": peak_bytes, "grown_bytes": laps.grown_bytes}))


if __name__ == "__main__":
    _run(sys.argv[1], Path(sys.argv[2]))
