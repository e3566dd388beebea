"""Cache keys: a hash over everything that determines an entry's content, and nothing else. Torch-free.

Changing one ingredient changes the keys of exactly the entries that depend on it; any other change affects none.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from modules.data.archives import open_file
from modules.data.buckets import ResizeCrop
from modules.data.cache.stat_index import StatIndex
from modules.data.decode import Rgb
from modules.data.transforms.fit import RESAMPLER

CACHE_FORMAT = 1


def image_key(
    *,
    digest: str,
    width_px: int,
    height_px: int,
    resize_crop: ResizeCrop,
    encoder: str,
    background: Rgb | None = None,
) -> str:
    """Return the key of an image's latents. `encoder` identifies the VAE's weights, dtype and TF32.

    `background` is the colour behind the image's transparent places; None where it has none.
    """
    return _hash(
        "latents",
        {
            "digest": digest,
            "size": [width_px, height_px],
            "scaled": [resize_crop.scaled.width_px, resize_crop.scaled.height_px],
            "crop": [resize_crop.crop_left_px, resize_crop.crop_top_px],
            "bucket": [resize_crop.bucket.width_px, resize_crop.bucket.height_px],
            "resampler": RESAMPLER,
            "encoder": encoder,
            "background": background,
        },
    )


def caption_key(*, caption: str, encoder: str) -> str:
    """Return the key of a caption's text embeddings. `encoder` identifies weights, dtypes, tokenizer and clip skip."""
    return _hash("text", {"caption": caption, "encoder": encoder})


def _hash(kind: str, ingredients: dict[str, object]) -> str:
    text = json.dumps([CACHE_FORMAT, kind, ingredients], sort_keys=True, ensure_ascii=True)
    return hashlib.blake2b(text.encode(), digest_size=20).hexdigest()


class DigestIndex:
    """The digests of image files, stored by path, size and modification time, so that no file is read twice."""

    def __init__(self, cache_dir: Path) -> None:
        self._index = StatIndex(cache_dir / "digests.sqlite", table="digests", column="digest")

    def digest(self, path: Path, *, size_bytes: int, mtime_ns: int, verify: bool = False) -> str:
        """Return the digest of a file's content; read it only if it is new, changed, or `verify` is set.

        Raises OSError where it cannot be read.
        """
        known = self._index.find(path, size_bytes=size_bytes, mtime_ns=mtime_ns)
        if known is not None and not verify:
            return known
        with open_file(path) as handle:
            digest = hashlib.file_digest(handle, lambda: hashlib.blake2b(digest_size=20)).hexdigest()
        self._index.keep(path, digest, size_bytes=size_bytes, mtime_ns=mtime_ns)
        return digest

    def save(self) -> None:
        """Write the digests added since the last save."""
        self._index.save()
