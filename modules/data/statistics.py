"""Statistics of a concept: its files, the sizes of its images, their buckets, the lengths of its captions, its tags.

No image is opened.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from modules.data.buckets import FIXED_ASPECT_RATIOS, Size
from modules.data.captions.tags import split_tags
from modules.data.companions import is_named_like_mask
from modules.data.inputs import MASK_SUFFIX, input_suffixes
from modules.data.listing import SUFFIXES
from modules.data.source_image import SourceImage

_CAPTION_SUFFIXES = (".txt", ".caption")


@dataclass(frozen=True, slots=True)
class Spread:
    """The lowest, the mean and the highest of some numbers, and the owners of the lowest and the highest."""

    lowest: float
    mean: float
    highest: float
    lowest_at: str
    highest_at: str


@dataclass(frozen=True, slots=True)
class FileCounts:
    """The files of a folder. An unpaired mask or caption has no image of its name."""

    num_folders: int = 0
    num_masks: int = 0
    num_unpaired_masks: int = 0
    num_conditioning_images: int = 0
    num_caption_files: int = 0
    num_unpaired_captions: int = 0
    num_images_without_mask: int = 0


@dataclass(frozen=True, slots=True)
class Statistics:
    """The statistics of a concept.

    `token_lengths` are the numbers of tokens of all captions, as long as they get in training; `num_long` of them have
    more than one chunk of `chunk_tokens`. `tags` are counted once for each image.
    """

    num_images: int
    size_bytes: int
    files: FileCounts
    pixels: Spread | None
    sizes: Mapping[Size, int]
    buckets: Mapping[Size, int]
    aspects: Mapping[float, int]
    num_captioned: int
    num_captions: int
    characters: Spread | None
    tokens: Spread | None
    token_lengths: tuple[int, ...]
    num_long: int
    chunk_tokens: int
    tags: tuple[tuple[str, int], ...]
    is_truncated: bool = False
    """Whether the model does not read what is beyond `chunk_tokens`."""


def spread_of(values: Sequence[tuple[float, str]]) -> Spread | None:
    """Return the spread of numbers, each with its owner; None without any."""
    if not values:
        return None
    lowest, highest = min(values, key=lambda v: v[0]), max(values, key=lambda v: v[0])
    mean = sum(v[0] for v in values) / len(values)
    return Spread(lowest[0], mean, highest[0], lowest[1], highest[1])


def file_counts(files: Iterable[Path], images: Sequence[SourceImage], excluded: Iterable[Path] = ()) -> FileCounts:
    """Return the counts of the files of a folder, given all of them, the used images, and the `excluded` ones."""
    used = {image.path.with_suffix("") for image in images}
    stems = used | {path.with_suffix("") for path in excluded if path.name}
    folders: set[Path] = set()
    masks: set[Path] = set()
    num_masks = num_conditioning = num_captions = unpaired_captions = 0
    for file in files:
        folders.add(file.parent)
        suffix = file.suffix.lower()
        if is_named_like_mask(file):
            num_masks += 1
            masks.add(file.with_name(file.stem.removesuffix(MASK_SUFFIX)))
        elif suffix in SUFFIXES and file.stem.endswith(input_suffixes()):
            num_conditioning += 1
        elif suffix in _CAPTION_SUFFIXES:
            num_captions += 1
            unpaired_captions += file.with_suffix("") not in stems
    return FileCounts(
        num_folders=len(folders),
        num_masks=num_masks,
        num_unpaired_masks=len(masks - stems),
        num_conditioning_images=num_conditioning,
        num_caption_files=num_captions,
        num_unpaired_captions=unpaired_captions,
        num_images_without_mask=len(used - masks),
    )


def tag_counts(images: Iterable[SourceImage], *, delimiter: str, separator: str) -> tuple[tuple[str, int], ...]:
    """Return the tags of captions with the number of images that have them, the most frequent first."""
    counts: Counter[str] = Counter()
    for image in images:
        counts.update(
            {
                tag
                for caption in image.captions
                for tag in split_tags(caption, delimiter=delimiter, keep_count=0, separator=separator).all
            }
        )
    return tuple(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def aspect_counts(sizes: Mapping[Size, int]) -> dict[float, int]:
    """Return how many images are nearest to each of OneTrainer's 17 aspect ratios (width over height), from 0.25."""
    ratios = sorted({r for ratio in FIXED_ASPECT_RATIOS for r in (ratio, 1 / ratio)})
    counts = dict.fromkeys(ratios, 0)
    for size, number in sizes.items():
        counts[min(ratios, key=lambda r: abs(r - size.aspect))] += number
    return counts


def statistics_of(
    images: Sequence[SourceImage],
    files: FileCounts,
    buckets: Mapping[Size, int],
    tags: tuple[tuple[str, int], ...],
    *,
    texts: Sequence[tuple[str, str]],
    count_tokens: Callable[[str], int] | None,
    chunk_tokens: int,
    is_truncated: bool = False,
) -> Statistics:
    """Return the statistics of some images. `texts` are all their captions as trained, each with its image's name.

    Without `count_tokens` the lengths in tokens stay unknown.
    """
    sizes = Counter(i.size for i in images if i.has_image)
    lengths = [(float(count_tokens(text)), name) for text, name in texts if text] if count_tokens is not None else []
    return Statistics(
        num_images=len(images),
        size_bytes=sum(i.size_bytes for i in images),
        files=files,
        pixels=spread_of([(float(i.width_px * i.height_px), i.path.name) for i in images if i.has_image]),
        sizes=dict(sizes.most_common()),
        buckets=buckets,
        aspects=aspect_counts(sizes),
        num_captioned=sum(bool(i.captions) for i in images),
        num_captions=sum(len(i.captions) for i in images),
        characters=spread_of([(float(len(c)), i.path.name) for i in images for c in i.captions]),
        tokens=spread_of(lengths),
        token_lengths=tuple(sorted(int(n) for n, _ in lengths)),
        num_long=sum(n > chunk_tokens for n, _ in lengths),
        chunk_tokens=chunk_tokens,
        is_truncated=is_truncated,
        tags=tags,
    )
