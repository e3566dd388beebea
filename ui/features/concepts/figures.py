"""The statistics of a concept in words and as bars."""

from __future__ import annotations

from collections.abc import Sequence

from modules.data.statistics import Spread, Statistics
from modules.system.problem import count, format_size
from ui.widgets.plot_model import Bar, Point

_NUM_BINS = 24
_MAX_POINTS = 2000
_MAX_TAGS = 500  # shown at once


def rows_of(statistics: Statistics) -> tuple[tuple[str, str], ...]:
    """Return the figures as pairs of label and value."""
    files = statistics.files
    rows = [
        ("Images", f"{statistics.num_images:,}"),
        ("Size on disk", format_size(statistics.size_bytes)),
        ("Folders", f"{files.num_folders:,}"),
        ("With a caption", f"{statistics.num_captioned:,} of {statistics.num_images:,}"),
        ("Captions", f"{statistics.num_captions:,}"),
        ("Caption files", _describe_pairs(files.num_caption_files, files.num_unpaired_captions)),
        ("Masks", _describe_pairs(files.num_masks, files.num_unpaired_masks)),
        ("Images without a mask", f"{files.num_images_without_mask:,}"),
        ("Conditioning images", f"{files.num_conditioning_images:,}"),
    ]
    if statistics.pixels is not None:
        rows += _spread_rows("Pixels", statistics.pixels, _describe_pixels)
    if statistics.characters is not None:
        rows += _spread_rows("Characters", statistics.characters, lambda n: f"{n:,.0f}")
    if statistics.tokens is not None:
        rows += _spread_rows("Tokens", statistics.tokens, lambda n: f"{n:,.0f}")
        rows.append((f"Longer than {statistics.chunk_tokens} tokens", count(statistics.num_long, "caption")))
    return tuple(rows)


def size_points(statistics: Statistics) -> tuple[Point, ...]:
    """Return the sizes of the images as points, the most frequent last, so that they are drawn above the others."""
    return tuple(
        Point(size.width_px, size.height_px, number, f"{size}: {count(number, 'image')}")
        for size, number in reversed(list(statistics.sizes.items())[:_MAX_POINTS])
    )


def bucket_bars(statistics: Statistics) -> tuple[Bar, ...]:
    """Return the buckets, the most frequent first; buckets with a single image are marked."""
    return tuple(
        Bar(str(size), number, f"{number:,}", is_marked=number == 1 and statistics.num_images > 1)
        for size, number in statistics.buckets.items()
    )


def aspect_bars(statistics: Statistics) -> tuple[Bar, ...]:
    """Return how many images are nearest to each aspect ratio."""
    return tuple(Bar(f"{ratio:.3g}", number, f"{number:,}") for ratio, number in statistics.aspects.items())


def token_bars(statistics: Statistics) -> tuple[Bar, ...]:
    """Return a histogram of the captions' tokens; bins beyond the first chunk are marked."""
    if not statistics.token_lengths:
        return ()
    longest = max(statistics.chunk_tokens, statistics.token_lengths[-1])
    width = max(1, -(-longest // _NUM_BINS))
    counts = [0] * (longest // width + 1)
    for length in statistics.token_lengths:
        counts[length // width] += 1
    return tuple(
        Bar(f"{n * width}", number, f"{number:,}", is_marked=n * width > statistics.chunk_tokens)
        for n, number in enumerate(counts)
    )


def describe_token_lengths(statistics: Statistics) -> str:
    """Explain the lengths of the captions."""
    if not statistics.token_lengths:
        has_captions = statistics.num_captions > 0
        return "Tokens can be counted once the base model is here." if has_captions else "There are no captions."
    if not statistics.num_long:
        return f"No caption is longer than {statistics.chunk_tokens} tokens, so none is truncated anywhere."
    long = f"{count(statistics.num_long, 'caption')} of {len(statistics.token_lengths):,}"
    numbers = f"{long} exceed {statistics.chunk_tokens} tokens."
    if statistics.is_truncated:
        return f"{numbers} The model does not read the rest."
    return f"{numbers} They are encoded in chunks here; programs limited to one chunk truncate them."


def search_tags(statistics: Statistics, search: str) -> list[tuple[str, int]]:
    """Return the tags that contain all words of a search, the most frequent first; not more than a table can show."""
    terms = search.casefold().split()
    matching = (tag for tag in statistics.tags if all(word in tag[0].casefold() for word in terms))
    return [tag for _, tag in zip(range(_MAX_TAGS), matching, strict=False)]


def describe_tags(statistics: Statistics, visible: Sequence[object]) -> str:
    """Return the number of tags, and of those that are shown."""
    once = sum(number == 1 for _, number in statistics.tags)
    some = f"{len(visible):,} of " if len(visible) < len(statistics.tags) else ""
    return f"{some}{count(len(statistics.tags), 'tag')}, {once:,} in a single image"


def _describe_pixels(pixels: float) -> str:
    return f"{pixels / 1e6:.2f} MP" if pixels >= 100_000 else f"{pixels:,.0f} px"


def _describe_pairs(total: int, unpaired: int) -> str:
    return f"{total:,}" + (f", {unpaired:,} without an image" if unpaired else "")


def _spread_rows(label: str, spread: Spread, describe: object) -> list[tuple[str, str]]:
    assert callable(describe)
    return [
        (f"{label}: max", f"{describe(spread.highest)}   {spread.highest_at}"),
        (f"{label}: average", describe(spread.mean)),
        (f"{label}: min", f"{describe(spread.lowest)}   {spread.lowest_at}"),
    ]
