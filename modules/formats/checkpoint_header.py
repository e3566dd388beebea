"""The header of a model file: names, shapes and dtypes of its tensors and its metadata, in any format.

Torch-free and quick: no tensor data is read, except a few small tensors that distinguish two models.
"""

from __future__ import annotations

import struct
import zipfile
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from modules.formats.headers import ITEM_BYTES, TensorEntry, UnreadableFileError, read_header
from modules.formats.pickle_header import PickledTensor, read_pickle_header

Container = Literal["safetensors", "pickle"]
_DTYPE_LABELS = {
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
    "F8_E4M3": "float8",
    "F8_E5M2": "float8",
}
_MOST_SCALAR_BYTES = 8
_HARMLESS = ("torch.", "collections.OrderedDict", "numpy.", "pytorch_lightning.", "lightning.", "builtins.set")


@dataclass(frozen=True, slots=True)
class CheckpointHeader:
    """Everything known about a file without its weights."""

    path: Path
    container: Container
    shapes: Mapping[str, tuple[int, ...]]
    dtypes: Mapping[str, str]
    metadata: Mapping[str, str]
    values: Mapping[str, object] = field(default_factory=dict)
    """Plain numbers and strings that a pickle contains beside its tensors, such as `global_step`."""
    code: tuple[str, ...] = ()
    """Names in a pickle that could run code; such a file is never loaded."""

    def has(self, *prefixes: str) -> bool:
        """Whether a tensor's name starts with one of these prefixes."""
        return any(name.startswith(prefixes) for name in self.shapes)

    @property
    def main_dtype(self) -> str:
        """The most common dtype of the tensors, by its plain name; empty where none is known."""
        counts = Counter(d for d in self.dtypes.values() if d in _DTYPE_LABELS)
        return _DTYPE_LABELS[counts.most_common(1)[0][0]] if counts else ""

    def second_axis(self, ending: str, *, prefix: str = "") -> int:
        """Return the size of the second axis of the first tensor with this ending, or 0."""
        shapes = (s for name, s in self.shapes.items() if name.startswith(prefix) and name.endswith(ending))
        return next((s[1] if len(s) > 1 else 0 for s in shapes), 0)


def read_checkpoint_header(path: Path) -> CheckpointHeader:
    """Return a model file's header. Raises UnreadableFileError for a file that is not a model."""
    try:
        header = read_header(path)
    except UnreadableFileError as error:
        if error.defect != "pickled":
            raise
        return _pickled(path)
    return CheckpointHeader(
        path,
        "safetensors",
        {name: t.shape for name, t in header.tensors.items()},
        {name: t.dtype for name, t in header.tensors.items()},
        header.metadata,
    )


def read_values(path: Path, name: str) -> np.ndarray | None:
    """Return one small tensor's values as float32, or None where they cannot be read without torch."""
    try:
        entry = read_header(path).tensors.get(name)
        if entry is not None:
            with path.open("rb") as file:
                file.seek(entry.start)
                return _floats(file.read(entry.end - entry.start), entry)
    except UnreadableFileError as error:
        if error.defect == "pickled" and zipfile.is_zipfile(path):
            return _pickled_values(path, name)
    return None


def read_scalars(path: Path, names: Iterable[str]) -> dict[str, float]:
    """Return the values of tensors of one number in a safetensors file; of those alone that can be read."""
    found: dict[str, float] = {}
    try:
        entries = read_header(path).tensors
        with path.open("rb") as file:
            for name in names:
                entry = entries.get(name)
                if entry is None or entry.end - entry.start > _MOST_SCALAR_BYTES:
                    continue
                file.seek(entry.start)
                values = _floats(file.read(entry.end - entry.start), entry)
                if values is not None and len(values) == 1:
                    found[name] = float(values[0])
    except (UnreadableFileError, OSError):
        pass
    return found


def _pickled(path: Path) -> CheckpointHeader:
    found = read_pickle_header(path)
    return CheckpointHeader(
        path,
        "pickle",
        {name: t.shape for name, t in found.tensors.items()},
        {name: t.dtype for name, t in found.tensors.items()},
        {},
        found.values,
        tuple(sorted(n for n in found.names if not n.startswith(_HARMLESS))),
    )


def _pickled_values(path: Path, name: str) -> np.ndarray | None:
    tensor = read_pickle_header(path).tensors.get(name)
    if tensor is None:
        return None
    storage, first = tensor.place
    count, size = int(np.prod(tensor.shape, dtype=np.int64)), ITEM_BYTES.get(tensor.dtype, 0)
    with zipfile.ZipFile(path) as archive:
        place = next((n for n in archive.namelist() if n.endswith(f"/data/{storage}")), None)
        if place is None or not size:
            return None
        with archive.open(place) as file:
            file.seek(first * size)
            return _floats(file.read(count * size), tensor)


def _floats(raw: bytes, tensor: TensorEntry | PickledTensor) -> np.ndarray | None:
    kinds = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}
    try:
        if tensor.dtype == "BF16":  # the upper half of a float32
            return (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
        return np.frombuffer(raw, kinds[tensor.dtype]).astype(np.float32)
    except (KeyError, ValueError, struct.error):
        return None
