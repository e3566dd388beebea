"""The payload of a result: the bytes of its tensors, without the metadata, which contain dates and paths.

Its digest is the same for two results with bit-equal weights, wherever and whenever they were written.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

from modules.formats.headers import Header, read_header
from modules.system.regular_files import open_regular
from trainer.run_folder.result import embeddings_folder

_PART_BYTES = 1 << 24


def weight_files(result: Path) -> dict[str, Path]:
    """Return the safetensors files of a result by their place in it: the file itself, or the files of its folder.

    The files of embeddings next to it belong to it.
    """
    inside = sorted(result.rglob("*.safetensors")) if result.is_dir() else [result]
    files = {file.relative_to(result).as_posix() if result.is_dir() else "": file for file in inside}
    return files | {f"embeddings/{file.name}": file for file in sorted(embeddings_folder(result).glob("*.safetensors"))}


def payload_of(result: Path) -> tuple[int, str]:
    """Return the number of tensors of a result, and the SHA-256 of their names, dtypes, shapes and bytes.

    Raises UnreadableFileError for a file that is not valid, and OSError.
    """
    digest, num_tensors = hashlib.sha256(), 0
    for place, file in weight_files(result).items():
        header = read_header(file)
        num_tensors += len(header.tensors)
        for part in _parts(place, file, header):
            digest.update(part)
    return num_tensors, digest.hexdigest()


def _parts(place: str, file: Path, header: Header) -> Iterator[bytes]:
    """Yield the text that describes each tensor of a file, and its bytes, in the order of their names."""
    with open_regular(file) as content:
        for name, tensor in sorted(header.tensors.items()):
            yield json.dumps([place, name, tensor.dtype, tensor.shape]).encode()
            content.seek(tensor.start)
            left = tensor.end - tensor.start
            while left and (part := content.read(min(left, _PART_BYTES))):
                left -= len(part)
                yield part
