"""The header of a model file: names, shapes and dtypes of its tensors and its metadata, in any format.

Quick: no tensor data is read, except a few small tensors that distinguish two models.
"""

from __future__ import annotations

import math
import zipfile
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np

from modules.formats.float8_scales import Float8Scales, scales_in
from modules.formats.gguf_header import GgufTensor, read_gguf_header
from modules.formats.headers import ITEM_BYTES, TensorEntry, UnreadableFileError, is_index, read_header, shards_of
from modules.formats.pickle_header import open_limited_zip, read_pickle_header, unsafe_names_of
from modules.formats.pickle_machine import PickleLimitError
from modules.formats.pickle_values import PickledTensor
from modules.system.regular_files import open_regular

Container = Literal["safetensors", "pickle", "gguf"]
_DTYPE_LABELS = {
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
    "F8_E4M3": "float8",
    "F8_E5M2": "float8",
}
_PICKLED_SUFFIXES = (".ckpt", ".pt", ".pth", ".bin", ".pkl", ".pickle")
_MAX_VALUES = 1_000_000
_MAX_SCALAR_BYTES = 8


@dataclass(frozen=True, slots=True)
class CheckpointHeader:
    """Everything known about a file without its weights."""

    path: Path
    container: Container
    shapes: Mapping[str, tuple[int, ...]]
    dtypes: Mapping[str, str]
    metadata: Mapping[str, str]
    values: Mapping[str, object] = field(default_factory=dict)
    """Plain numbers and strings that a pickle contains in addition to its tensors, such as `global_step`."""
    code: tuple[str, ...] = ()
    """Names in a pickle that could run code; such a file is never loaded."""
    entries: Mapping[str, TensorEntry | PickledTensor | GgufTensor] = field(default_factory=dict, repr=False)
    """Where the tensors are in the file, for `read_values`."""

    def has(self, *prefixes: str) -> bool:
        """Return whether a tensor's name starts with one of these prefixes."""
        return any(name.startswith(prefixes) for name in self.shapes)

    @property
    def main_dtype(self) -> str:
        """The dtype of most numbers in the tensors, by its plain name, or their GGUF type; empty if it is unknown."""
        sizes: Counter[str] = Counter()
        for name, dtype in self.dtypes.items():
            if self.container == "gguf" or dtype in _DTYPE_LABELS:
                sizes[dtype] += math.prod(self.shapes[name])
        if not sizes:
            return ""
        dtype = sizes.most_common(1)[0][0]
        return f"GGUF {dtype}" if self.container == "gguf" else _DTYPE_LABELS[dtype]

    def second_axis(self, ending: str, *, prefix: str = "") -> int:
        """Return the size of the second axis of the first tensor with this ending, or 0."""
        shapes = (s for name, s in self.shapes.items() if name.startswith(prefix) and name.endswith(ending))
        return next((s[1] if len(s) > 1 else 0 for s in shapes), 0)

    @property
    def scales(self) -> Float8Scales:
        """The scales of its weights, if they are in scaled float8."""
        return scales_in(self.shapes, self.dtypes, self.metadata)

    @property
    def weights(self) -> dict[str, tuple[int, ...]]:
        """The shapes of its tensors without the scales of others."""
        return {name: self.shapes[name] for name in self.scales.weights(self.shapes)}


def read_checkpoint_header(path: Path) -> CheckpointHeader:
    """Return the header of a model file, or of all files of an index together.

    Raises UnreadableFileError for a file that is not a model.
    """
    if is_index(path):
        return _of_shards(path)
    try:
        header = read_header(path)
    except UnreadableFileError as error:
        if error.defect == "pickled":
            return _pickle_header(path)
        if error.defect == "gguf":
            return _gguf(path)
        if error.defect == "damaged" and path.suffix.lower() in _PICKLED_SUFFIXES:
            _refuse_code(path)
        raise
    return CheckpointHeader(
        path,
        "safetensors",
        {name: t.shape for name, t in header.tensors.items()},
        {name: t.dtype for name, t in header.tensors.items()},
        header.metadata,
        entries=header.tensors,
    )


def _of_shards(index: Path) -> CheckpointHeader:
    headers = [read_header(file) for file in shards_of(index)]
    tensors = {name: entry for header in headers for name, entry in header.tensors.items()}
    return CheckpointHeader(
        index,
        "safetensors",
        {name: t.shape for name, t in tensors.items()},
        {name: t.dtype for name, t in tensors.items()},
        {},
    )


def read_values(header: CheckpointHeader, name: str) -> np.ndarray | None:
    """Return one small tensor's values as float32, or None if they cannot be read without torch."""
    entry = header.entries.get(name)
    if entry is None or isinstance(entry, GgufTensor) or math.prod(entry.shape) > _MAX_VALUES:
        return None
    try:
        with open_regular(header.path) as file:
            if isinstance(entry, PickledTensor):
                return _read_pickled_values(file, entry)
            file.seek(entry.start)
            return _floats(file.read(entry.end - entry.start), entry.dtype)
    except (OSError, ValueError, RuntimeError, PickleLimitError, zipfile.BadZipFile):
        return None


def _refuse_code(path: Path) -> None:
    """Raise UnreadableFileError for a pickle with code of an old protocol, which has no recognizable beginning."""
    try:
        read_pickle_header(path)
    except UnreadableFileError as error:
        if error.defect == "unsafe":
            raise


def read_scalars(header: CheckpointHeader, names: Iterable[str]) -> dict[str, float]:
    """Return the values of tensors of one number in a safetensors file, without unreadable ones."""
    numbers: dict[str, float] = {}
    try:
        with open_regular(header.path) as file:
            for name in names:
                entry = header.entries.get(name)
                if not isinstance(entry, TensorEntry) or entry.end - entry.start > _MAX_SCALAR_BYTES:
                    continue
                file.seek(entry.start)
                values = _floats(file.read(entry.end - entry.start), entry.dtype)
                if values is not None and len(values) == 1:
                    numbers[name] = float(values[0])
    except (OSError, ValueError):
        pass
    return numbers


def _gguf(path: Path) -> CheckpointHeader:
    header = read_gguf_header(path)
    return CheckpointHeader(
        path,
        "gguf",
        {name: t.shape for name, t in header.tensors.items()},
        {name: t.type.name for name, t in header.tensors.items()},
        header.metadata,
        entries=header.tensors,
    )


def _pickle_header(path: Path) -> CheckpointHeader:
    header = read_pickle_header(path)
    return CheckpointHeader(
        path,
        "pickle",
        {name: t.shape for name, t in header.tensors.items()},
        {name: t.dtype for name, t in header.tensors.items()},
        {},
        header.values,
        unsafe_names_of(header.names),
        header.tensors,
    )


def _read_pickled_values(file: BinaryIO, tensor: PickledTensor) -> np.ndarray | None:
    storage, first = tensor.place
    size = ITEM_BYTES.get(tensor.dtype, 0)
    with open_limited_zip(file) as archive:
        place = next((e for e in archive.infolist() if e.filename.endswith(f"/data/{storage}")), None)
        if place is None or not size or place.compress_type != zipfile.ZIP_STORED:
            return None
        with archive.open(place) as stored:
            stored.seek(first * size)
            return _floats(stored.read(math.prod(tensor.shape) * size), tensor.dtype)


def _floats(raw: bytes, dtype: str) -> np.ndarray | None:
    kinds = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}
    if dtype == "BF16":  # the upper half of a float32
        return (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(raw, kinds[dtype]).astype(np.float32) if dtype in kinds else None
