"""Tar shards as WebDataset writes them."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

from tests.builders.images import draw_image


def write_shard(file: Path, members: Mapping[str, bytes]) -> Path:
    """Write a tar file of the given members, in their order."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(file, "w") as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return file


def image_bytes(width: int, height: int, index: int, kind: str = "PNG") -> bytes:
    """A drawn image, encoded."""
    content = io.BytesIO()
    draw_image(width, height, index).save(content, kind)
    return content.getvalue()


def draw_shard(file: Path, *, sizes: list[tuple[int, int]]) -> Path:
    """Write a shard of one image per size, each with a caption and a JSON file."""
    members: dict[str, bytes] = {}
    for index, (width, height) in enumerate(sizes):
        members[f"{index:04d}.png"] = image_bytes(width, height, index)
        members[f"{index:04d}.txt"] = f"picture number {index}".encode()
        members[f"{index:04d}.json"] = f'{{"caption": "row {index}"}}'.encode()
    return write_shard(file, members)
