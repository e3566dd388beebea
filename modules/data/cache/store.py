"""Cache entries on disk: safetensors files in fan-out folders, each with a checksum, written atomically."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from uuid import uuid4

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file


class BrokenEntryError(Exception):
    """A cache entry is not as it was written: truncated, altered, or of another format."""


class CacheStore:
    """Entries by key under one folder: `<folder>/<first two digits>/<key>.safetensors`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, key: str) -> Path:
        """Return the path of the entry with that key, whether or not it exists."""
        return self.folder / key[:2] / f"{key}.safetensors"

    def has(self, key: str) -> bool:
        """Return whether there is an entry; its content is only checked when it is read."""
        return self.path(key).is_file()

    def write(self, key: str, tensors: Mapping[str, torch.Tensor]) -> None:
        """Write an entry under a temporary name and rename it, so that a partial entry is never read."""
        path = self.path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        plain = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
        temporary = path.with_name(f".{key}.{uuid4().hex[:8]}")
        try:
            save_file(plain, temporary, metadata={"checksum": _checksum(plain)})
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)

    def read(self, key: str) -> dict[str, torch.Tensor]:
        """Return an entry's tensors, memory-mapped. Raises BrokenEntryError where it is missing or damaged."""
        try:
            with safe_open(self.path(key), framework="pt") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
                checksum = (file.metadata() or {}).get("checksum")
        except (OSError, SafetensorError) as error:
            raise BrokenEntryError(f"{self.path(key)}: {error}") from error
        if checksum != _checksum(tensors):
            raise BrokenEntryError(f"{self.path(key)}: its content does not match its checksum")
        return tensors

    def remove(self, key: str) -> None:
        """Remove an entry, if it is there."""
        self.path(key).unlink(missing_ok=True)


def _checksum(tensors: Mapping[str, torch.Tensor]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(tensors):
        digest.update(f"{name}:{tensors[name].dtype}:{tuple(tensors[name].shape)}".encode())
        digest.update(_raw_bytes(tensors[name]))
    return digest.hexdigest()


def weights_fingerprint(module: torch.nn.Module) -> str:
    """Return a hash of all of a module's weights, their names, shapes and dtypes; the module must be on the CPU."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}".encode())
        digest.update(_raw_bytes(tensor.detach().cpu().contiguous()))
    return digest.hexdigest()


def _raw_bytes(tensor: torch.Tensor) -> memoryview:
    return tensor.reshape(-1).view(torch.uint8).numpy().data
