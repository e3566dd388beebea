"""The statistics of a concept in words and as bars."""

from __future__ import annotations

from collections.abc import Sequence

from modules.data.statistics import Spread, Statistics
from modules.system.problem import count
from ui.widgets.plot_model import Bar, Point

_NUM_BINS = 24
_MAX_POINTS = 2000
_MAX_TAGS = 500  # shown at once


def rows_of(found: Statistics) -> tuple[tuple[str, str], ...]:
    """Return the figures as pairs of label and value."""
    files = found.files
    rows = [
        ("Images", f"{found.num_images:,}"),
        ("Size on disk", size_words(found.size_bytes)),
        ("Folders", f"{files.num_folders:,}"),
        ("With a caption", f"{found.num_captioned:,} of {found.num_images:,}"),
        ("Captions", f"{found.num_captions:,}"),
        ("Caption files", _pair_words(files.num_caption_files, files.num_unpaired_captions)),
        ("Masks", _pair_words(files.num_masks, files.num_unpaired_masks)),
        ("Images without a mask", f"{files.num_images_without_mask:,}"),
        ("Conditioning images", f"{files.num_conditioning_images:,}"),
    ]
    if found.pixels is not None:
        rows += _spread_rows("Pixels", found.pixels, _pixel_words)
    if found.characters is not None:
        rows += _spread_rows("Characters", found.characters, lambda n: f"{n:,.0f}")
    if found.tokens is not None:
        rows += _spread_rows("Tokens", found.tokens, lambda n: f"{n:,.0f}")
        rows.append((f"Longer than {found.chunk_tokens} tokens", count(found.num_long, "caption")))
    return tuple(rows)


def size_points(found: Statistics) -> tuple[Point, ...]:
    """Return the sizes of the images as points, the most frequent last, so that they are drawn above the others."""
    return tuple(
        Point(size.width_px, size.height_px, number, f"{size}: {count(number, 'image')}")
        for size, number in reversed(list(found.sizes.items())[:_MAX_POINTS])
    )


def bucket_bars(found: Statistics) -> tuple[Bar, ...]:
    """Return the buckets, the most frequent first; buckets with a single image are marked."""
    return tuple(
        Bar(str(size), number, f"{number:,}", is_marked=number == 1 and found.num_images > 1)
        for size, number in found.buckets.items()
    )


def aspect_bars(found: Statistics) -> tuple[Bar, ...]:
    """Return how many images are nearest to each aspect ratio."""
    return tuple(Bar(f"{ratio:.3g}", number, f"{number:,}") for ratio, number in found.aspects.items())


def token_bars(found: Statistics) -> tuple[Bar, ...]:
    """Return a histogram of the captions' tokens; bins beyond the first chunk are marked."""
    if not found.token_lengths:
        return ()
    longest = max(found.chunk_tokens, found.token_lengths[-1])
    width = max(1, -(-longest // _NUM_BINS))
    counts = [0] * (longest // width + 1)
    for length in found.token_lengths:
        counts[length // width] += 1
    return tuple(
        Bar(f"{n * width}", number, f"{number:,}", is_marked=n * width > found.chunk_tokens)
        for n, number in enumerate(counts)
    )


def token_words(found: Statistics) -> str:
    """Explain the lengths of the captions."""
    if not found.token_lengths:
        return "There are no captions."
    if not found.num_long:
        return f"No caption is longer than {found.chunk_tokens} tokens, so none is truncated anywhere."
    numbers = f"{count(found.num_long, 'caption')} of {len(found.token_lengths):,} exceed {found.chunk_tokens} tokens."
    if found.is_truncated:
        return f"{numbers} The model does not read the rest."
    return f"{numbers} They are encoded in chunks here; programs limited to one chunk truncate them."


def search_tags(found: Statistics, search: str) -> list[tuple[str, int]]:
    """Return the tags that contain all words of a search, the most frequent first; not more than a table can show."""
    words = search.casefold().split()
    matching = (tag for tag in found.tags if all(word in tag[0].casefold() for word in words))
    return [tag for _, tag in zip(range(_MAX_TAGS), matching, strict=False)]


def tag_words(found: Statistics, shown: Sequence[object]) -> str:
    """Return the number of tags, and of those that are shown."""
    once = sum(number == 1 for _, number in found.tags)
    some = f"{len(shown):,} of " if len(shown) < len(found.tags) else ""
    return f"{some}{count(len(found.tags), 'tag')}, {once:,} in a single image"


def size_words(num_bytes: float) -> str:
    """Return a number of bytes in a readable unit."""
    for unit in ("B", "kB", "MB"):
        if num_bytes < 1000:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.2f} GB"


def _pixel_words(pixels: float) -> str:
    return f"{pixels / 1e6:.2f} MP" if pixels >= 100_000 else f"{pixels:,.0f} px"


def _pair_words(total: int, unpaired: int) -> str:
    return f"{total:,}" + (f", {unpaired:,} without an image" if unpaired else "")


def _spread_rows(label: str, spread: Spread, words: object) -> list[tuple[str, str]]:
    assert callable(words)
    return [
        (f"{label}: max", f"{words(spread.highest)}   {spread.highest_at}"),
        (f"{label}: average", words(spread.mean)),
        (f"{label}: min", f"{words(spread.lowest)}   {spread.lowest_at}"),
    ]
