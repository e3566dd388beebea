"""The examples of a dataset as columns in a safetensors file, which several processes map into memory together.

A million of them as objects take a gigabyte in each process; as columns they are pages of a file that all processes of
a machine share. An example becomes an object when it is asked for. The processes of the run that wrote a file read it.

The columns of N examples, some of which share a folder, facts or crops:

- `integers_N4`: the bytes and the modification time in ns of the image's file, and where its texts and its further
  facts end;
- `numbers_N5`: the width and the height of the image in px, and the numbers of its folder, its shared facts (`tables`)
  and its crops (`crops_CR7`);
- `texts`: the name of the image's file and its captions, separated by zero bytes;
- `further`: what only some examples have, as JSON.
"""

from __future__ import annotations

import json
import mmap
import os
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from functools import cache
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from modules.data.archives import SHARD_SUFFIXES, archive_of
from modules.data.buckets import ResizeCrop, Size
from modules.data.captions.sources import CaptionFault
from modules.data.companions import Companion
from modules.data.decode import Rgb
from modules.data.example import Example
from modules.data.inputs import NO_INPUTS
from modules.data.shard_index import columns_of_shards, remember_columns
from modules.data.source_image import SourceImage
from modules.data.transforms.geometry import Box
from modules.formats.headers import read_header

_AT_ONCE = 4096
_SEPARATOR = "\0"
_SHARDS = "shards of datasets"
_DTYPES: Mapping[str, np.dtype[Any]] = {"I64": np.dtype("<i8"), "I32": np.dtype("<i4"), "U8": np.dtype("u1")}
_CODES = {dtype: code for code, dtype in _DTYPES.items()}
_NOTHING: Mapping[str, Any] = MappingProxyType({})
Columns = Mapping[str, NDArray[Any]]
Crops = tuple[ResizeCrop, ...]


def write_examples(file: Path, datasets: Mapping[str, Sequence[Example]]) -> None:
    """Write the examples of several datasets, each under a name, to a safetensors file. Raises OSError.

    With them the indexes of their tar shards are written, so that other processes need not read all headers again.
    """
    parts = {name: _columns(examples) for name, examples in datasets.items()}
    parts[_SHARDS] = columns_of_shards(_shards_of(chain.from_iterable(datasets.values())))
    tensors = {f"{name}.{key}": column for name, columns in parts.items() for key, column in columns.items()}
    ordered = sorted(tensors, key=lambda name: -tensors[name].dtype.itemsize)  # so that all of them are aligned
    header, start = dict[str, Any](), 0
    for name in ordered:
        column = tensors[name]
        end = start + column.nbytes
        header[name] = {"dtype": _CODES[column.dtype], "shape": column.shape, "data_offsets": (start, end)}
        start = end
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    with file.open("wb") as stored:
        stored.write(len(encoded).to_bytes(8, "little") + encoded)
        for name in ordered:
            stored.write(tensors[name].tobytes())


def map_examples(file: Path) -> dict[str, StoredExamples]:
    """Return the examples of the datasets in a file, by name. Its pages are read when they are needed.

    Their tar shards are known to this process from then on.

    The file may be removed while it is mapped, except on Windows. Raises OSError and UnreadableFileError.
    """
    header = read_header(file)
    with file.open("rb") as stored:
        content = mmap.mmap(stored.fileno(), 0, access=mmap.ACCESS_READ)
    datasets: dict[str, dict[str, NDArray[Any]]] = {}
    for key, entry in header.tensors.items():
        name, _, column = key.rpartition(".")
        dtype = _DTYPES[entry.dtype]
        values = np.frombuffer(content, dtype, (entry.end - entry.start) // dtype.itemsize, entry.start)
        datasets.setdefault(name, {})[column] = values.reshape(entry.shape)
    remember_columns(datasets.pop(_SHARDS))
    return {name: StoredExamples(columns) for name, columns in datasets.items()}


def _shards_of(examples: Iterable[Example]) -> list[Path]:
    """Return the tar shards with images of examples."""
    folders = dict.fromkeys(example.image.folder for example in examples)
    archives = dict.fromkeys(archive_of(folder / "any") for folder in folders)
    return [path for path in archives if path is not None and path.suffix.lower() in SHARD_SUFFIXES]


class StoredExamples(Sequence[Example]):
    """The examples of one dataset in a mapped file. What several of them share is one object."""

    def __init__(self, columns: Columns) -> None:
        self._integers_N4, self._numbers_N5 = columns["integers_N4"], columns["numbers_N5"]
        self._texts, self._further = columns["texts"], columns["further"]
        tables, crops_CR7 = json.loads(columns["tables"].tobytes()), columns["crops_CR7"]
        self._shared = [_SharedFacts.from_json(facts) for facts in tables["shared"]]
        self._folder = cache(lambda number: Path(tables["folders"][number]))
        self._crops = cache(lambda number: tuple(map(_crop_of, crops_CR7[number].tolist())))
        self._newest: tuple[int, Example] | None = None

    @property
    def resize_crops(self) -> Iterator[Crops]:
        """Yield the crops of each example; equal ones are the same object."""
        return map(self._crops, self._numbers_N5[:, 4].tolist())

    def __len__(self) -> int:
        return len(self._numbers_N5)

    @overload
    def __getitem__(self, number: int) -> Example: ...

    @overload
    def __getitem__(self, number: slice) -> Sequence[Example]: ...

    def __getitem__(self, number: int | slice) -> Example | Sequence[Example]:
        if isinstance(number, slice):
            first, end, step = number.indices(len(self))
            return tuple(self._some(first, end) if step == 1 else (self[n] for n in range(first, end, step)))
        newest = self._newest  # several uses of an example follow each other
        if newest is not None and newest[0] == number:
            return newest[1]
        if not -len(self) <= number < len(self):
            raise IndexError(number)
        example = next(self._some(number % len(self), number % len(self) + 1))
        self._newest = number, example
        return example

    def __iter__(self) -> Iterator[Example]:
        for first in range(0, len(self), _AT_ONCE):
            yield from self._some(first, min(first + _AT_ONCE, len(self)))

    def _some(self, first: int, end: int) -> Iterator[Example]:
        """Yield the examples from one up to another."""
        text_start, further_start = self._integers_N4[first - 1, 2:].tolist() if first else (0, 0)
        for integers, numbers in zip(
            self._integers_N4[first:end].tolist(), self._numbers_N5[first:end].tolist(), strict=True
        ):
            size_bytes, mtime_ns, text_end, further_end = integers
            width_px, height_px, folder, shared, crops = numbers
            name, *captions = (
                self._texts[text_start:text_end].tobytes().decode(errors="surrogatepass").split(_SEPARATOR)
            )
            further = self._further_facts(further_start, further_end) if further_end > further_start else _NOTHING
            text_start, further_start = text_end, further_end
            facts = self._shared[shared]
            image = SourceImage(
                self._folder(folder),
                name,
                width_px,
                height_px,
                size_bytes,
                mtime_ns,
                tuple(further.get("captions", captions)),
                facts.caption_fault,
                facts.caption_from,
                facts.is_transparent,
                facts.has_image,
                _image_of(further["rejected"]) if "rejected" in further else None,
                further.get("num_frames", 1),
            )
            yield Example(
                image,
                facts.concept,
                self._crops(crops),
                facts.background,
                facts.place,
                _companion_of(further["mask"]) if "mask" in further else None,
                Box(*further["mask_box"]) if "mask_box" in further else None,
                {n: _companion_of(c) for n, c in further["inputs"].items()} if "inputs" in further else NO_INPUTS,
                facts.rejected_background,
            )

    def _further_facts(self, start: int, end: int) -> dict[str, Any]:
        facts: dict[str, Any] = json.loads(self._further[start:end].tobytes())
        return facts


def _columns(examples: Sequence[Example]) -> Columns:
    """Return the columns of examples."""
    integers, numbers = array("q"), array("i")
    texts, further = bytearray(), bytearray()
    folders, shared, crops = dict[Path, int](), dict[_SharedFacts, int](), dict[Crops, int]()
    for example in examples:
        image, rest = example.image, _further(example)
        captions = () if "captions" in rest else image.captions
        texts += _SEPARATOR.join((image.file_name, *captions)).encode(errors="surrogatepass")
        further += json.dumps(rest).encode() if rest else b""
        integers.extend((image.size_bytes, image.mtime_ns, len(texts), len(further)))
        numbers.extend((image.width_px, image.height_px, folders.setdefault(image.folder, len(folders))))
        numbers.append(shared.setdefault(_SharedFacts.of(example), len(shared)))
        numbers.append(crops.setdefault(example.resize_crops, len(crops)))
    tables = {"folders": list(map(os.fspath, folders)), "shared": [facts.to_json() for facts in shared]}
    rows = [[(*astuple(c.bucket), *c.scaled.sides_px, c.crop_left_px, c.crop_top_px) for c in some] for some in crops]
    return {
        "integers_N4": np.array(integers, "<i8").reshape(-1, 4),
        "numbers_N5": np.array(numbers, "<i4").reshape(-1, 5),
        "crops_CR7": np.array(rows, "<i4").reshape(len(rows), len(rows[0]) if rows else 1, 7),
        "texts": np.frombuffer(texts, np.uint8),
        "further": np.frombuffer(further, np.uint8),
        "tables": np.frombuffer(json.dumps(tables).encode(), np.uint8),
    }


@dataclass(frozen=True, slots=True)
class _SharedFacts:
    """Facts that many examples of a concept share."""

    concept: int
    caption_fault: CaptionFault
    caption_from: Path | str | None
    is_transparent: bool
    has_image: bool
    background: Rgb | None
    rejected_background: Rgb | None
    place: str

    @classmethod
    def of(cls, example: Example) -> _SharedFacts:
        """Return the shared facts of an example."""
        image = example.image
        return cls(
            example.concept,
            image.caption_fault,
            image.caption_from,
            image.is_transparent,
            image.has_image,
            example.background,
            example.rejected_background,
            example.place,
        )

    def to_json(self) -> list[Any]:
        """Return them as JSON-safe data."""
        return [*astuple(replace(self, caption_from=None)), *_caption_place(self.caption_from)]

    @classmethod
    def from_json(cls, facts: list[Any]) -> _SharedFacts:
        """Return the facts from the JSON-safe data of `to_json`."""
        *values, file, suffix = facts
        concept, fault, _, is_transparent, has_image, background, of_rejected, place = values
        origin = _caption_from(file, suffix)
        return cls(concept, fault, origin, is_transparent, has_image, _color(background), _color(of_rejected), place)


def _further(example: Example) -> dict[str, Any]:
    """Return the facts that only some examples have, as JSON-safe data."""
    image, fields = example.image, dict[str, Any]()
    if any(_SEPARATOR in caption for caption in image.captions):
        fields["captions"] = image.captions
    if example.mask is not None:
        fields["mask"] = _stored_companion(example.mask)
    if example.mask_box is not None:
        fields["mask_box"] = example.mask_box.corners
    if example.input_files:
        fields["inputs"] = {name: _stored_companion(file) for name, file in example.input_files.items()}
    if image.rejected is not None:
        fields["rejected"] = _stored_image(image.rejected)
    if image.num_frames > 1:
        fields["num_frames"] = image.num_frames
    return fields


def _stored_image(image: SourceImage) -> list[Any]:
    sizes = image.width_px, image.height_px, image.size_bytes, image.mtime_ns
    place = _caption_place(image.caption_from)
    facts = image.captions, image.caption_fault, *place, image.is_transparent, image.has_image, image.num_frames
    return [os.fspath(image.folder), image.file_name, *sizes, *facts]


def _image_of(stored: list[Any]) -> SourceImage:
    folder, name, width_px, height_px, size_bytes, mtime_ns, captions, fault, *place, transparent, has, frames = stored
    sizes = width_px, height_px, size_bytes, mtime_ns
    caption_from = _caption_from(*place)
    return SourceImage(
        Path(folder), name, *sizes, tuple(captions), fault, caption_from, transparent, has, num_frames=frames
    )


def _stored_companion(file: Companion) -> list[Any]:
    return [os.fspath(file.path), *file.size.sides_px, file.size_bytes, file.mtime_ns, file.is_alpha]


def _companion_of(stored: list[Any]) -> Companion:
    path, width_px, height_px, size_bytes, mtime_ns, is_alpha = stored
    return Companion(Path(path), Size(width_px, height_px), size_bytes, mtime_ns, is_alpha)


def _caption_place(caption_from: Path | str | None) -> tuple[str | None, str | None]:
    """Return the file of a caption, or the suffix of its name."""
    return (os.fspath(caption_from), None) if isinstance(caption_from, Path) else (None, caption_from)


def _caption_from(file: str | None, suffix: str | None) -> Path | str | None:
    return suffix if file is None else Path(file)


def _color(stored: list[int] | None) -> Rgb | None:
    if stored is None:
        return None
    red, green, blue = stored
    return red, green, blue


def _crop_of(row: list[int]) -> ResizeCrop:
    *bucket, width, height, left, top = row
    return ResizeCrop(Size(*bucket), Size(width, height), left, top)
