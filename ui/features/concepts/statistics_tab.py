"""The Statistics tab: files, sizes, buckets, lengths of captions, and tags."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Sequence
from functools import partial
from typing import Any

from modules.config.schema import Config
from modules.data.scan import Scan
from modules.data.statistics import Spread, Statistics
from modules.system.problem import count, format_size
from ui.features.concepts.task import Task, TaskBar
from ui.features.concepts.window import Editing
from ui.loop.background import Report
from ui.widgets.card import Card
from ui.widgets.entry import Entry
from ui.widgets.panel import Panel, WrappedText
from ui.widgets.plot import Plot
from ui.widgets.plot_model import BARS, POINTS, Bar, Figure, Point
from ui.widgets.table import Column, Table
from ui.widgets.theme import GAP, PAD
from ui.widgets.variables import TextVar

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


_CHART_PX = (120, 90)
_FOLLOW_SECONDS = 0.5
_SEARCH_SECONDS = 0.15


class StatisticsTab:
    """Computed in the background when the tab is shown, and again when the concept changes."""

    def __init__(self, frame: Panel, editing: Editing) -> None:
        self.frame = frame
        self.task: Task[Statistics] = Task(editing.context.pump.background)
        self._editing = editing
        self._based_on: tuple[Any, ...] = (None,)
        theme, px = editing.context.theme, editing.context.theme.px
        frame.rowconfigure(0, weight=0)
        frame.rowconfigure((1, 2), weight=1, uniform="charts")
        for column, weight in enumerate((6, 5, 5)):
            frame.columnconfigure(column, weight=weight, uniform="charts")
        self.bar = TaskBar(frame, theme, start=self._start, stop=self.task.stop, label="Refresh")
        self.bar.grid(row=0, column=0, columnspan=3, sticky="ew", padx=px(PAD), pady=(px(12), px(GAP)))
        self.figures = Table(
            self._card("Files and captions", 1, 0, rowspan=2),
            theme,
            (Column("#0", "", 168), Column("value", "", 150, is_stretched=True, is_fitted=True)),
            num_rows=4,
        )
        self.figures.tree.configure(show="tree")
        self.figures.pack(fill="both", expand=True, padx=(px(GAP), 0))
        self.sizes = Plot(self._card("Image sizes", 1, 1), theme, size_px=_CHART_PX)
        self.buckets = Plot(self._card("Buckets", 1, 2), theme, size_px=_CHART_PX)
        for chart in (self.sizes, self.buckets):
            chart.pack(fill="both", expand=True, padx=(px(GAP), 0))
        tokens = self._card("Caption tokens", 2, 1)
        self.token_text = WrappedText(tokens, theme, role="small", colour="muted", on="card")
        self.token_text.pack(side="bottom", fill="x", padx=(px(GAP), 0))
        self.tokens = Plot(tokens, theme, size_px=_CHART_PX)
        self.tokens.pack(fill="both", expand=True, padx=(px(GAP), 0))
        self._add_tags(self._card("Tags", 2, 2))
        self.task.changed.subscribe(self._show)

    def follow(self) -> None:
        """Compute again if the concept, its scan or the buckets have changed."""
        pump = self._editing.context.pump
        pump.redraw_soon(self, self._follow, at_most_every_seconds=_FOLLOW_SECONDS)

    def close(self) -> None:
        """Cancel the work."""
        self._editing.context.pump.forget(self)
        self._editing.context.pump.forget((self, "search"))
        self.task.stop()

    def _card(self, title: str, row: int, column: int, *, rowspan: int = 1) -> Panel:
        px = self._editing.context.theme.px
        card = Card(self.frame, self._editing.context.theme, title)
        left = px(PAD) if column == 0 else 0
        tk.Grid.grid_configure(
            card, row=row, column=column, rowspan=rowspan, sticky="nsew", padx=(left, px(PAD)),
            pady=(0, px(PAD) if row + rowspan == 2 else 0),
        )  # fmt: skip
        return card.body

    def _add_tags(self, body: Panel) -> None:
        theme, px = self._editing.context.theme, self._editing.context.theme.px
        self.search = TextVar(master=self.frame)
        self.search_entry = Entry(body, theme, self.search, placeholder="Search tags")
        self.search_entry.pack(fill="x", padx=(px(GAP), 0))
        self.tag_text = WrappedText(body, theme, role="small", colour="muted", on="card")
        self.tag_text.pack(side="bottom", fill="x", padx=(px(GAP), 0))
        columns = (Column("#0", "Tag", 140, is_stretched=True, is_fitted=True), Column("images", "Images", 60, "e"))
        self.tags = Table(body, theme, columns, num_rows=3)
        self.tags.pack(fill="both", expand=True, padx=(px(GAP), 0), pady=(px(4), 0))
        pump = self._editing.context.pump
        self.search.trace_add(
            "write",
            lambda *_: pump.redraw_soon((self, "search"), self._show_tags, at_most_every_seconds=_SEARCH_SECONDS),
        )

    def _follow(self) -> None:
        if not self._editing.is_there:
            return
        concept, config = self._editing.concept, self._editing.context.form.config
        based_on = (self._editing.scan, concept.text, concept.image, concept.kind, config.data, config.model)
        if based_on[0] is not self._based_on[0] or based_on[1:] != self._based_on[1:]:
            self._based_on = based_on
            self._start()

    def _start(self) -> None:
        scan = self._editing.scan
        if isinstance(scan, Scan):
            work = partial(_compute, self._editing.context.form.config, self._editing.number, scan)
            self.task.start(work)
        else:
            self.task.stop()
            self.bar.show_unscanned(scan)

    def _show(self) -> None:
        statistics = self.task.result
        self.bar.follow(self.task, _summary(statistics) if statistics is not None else "")
        if statistics is not None and not self.task.is_running:
            self._show_statistics(statistics)

    def _show_statistics(self, statistics: Statistics) -> None:
        self.figures.set_rows([(label, (value,), "") for label, value in rows_of(statistics)])
        self.sizes.show(Figure(frame=POINTS, points=size_points(statistics), x_label="px wide"))
        self.buckets.show(Figure(bars=bucket_bars(statistics), has_rows=True))
        self.tokens.show(Figure(frame=BARS, bars=token_bars(statistics)))
        self.token_text.set_text(describe_token_lengths(statistics))
        self._show_tags()

    def _show_tags(self) -> None:
        statistics = self.task.result
        if statistics is not None:
            tags = search_tags(statistics, self.search.get())
            self.tags.set_rows([(tag, (f"{number:,}",), "") for tag, number in tags])
            self.tag_text.set_text(describe_tags(statistics, tags))


def _compute(config: Config, number: int, scan: Scan, report: Report) -> Statistics:
    from trainer.preflight.statistics import concept_statistics  # on this thread: it loads the tokenizers

    return concept_statistics(config, number, scan=scan, progress=report)


def _summary(statistics: Statistics) -> str:
    sizes, buckets = count(len(statistics.sizes), "size"), count(len(statistics.buckets), "bucket")
    aspects = [bar for bar in aspect_bars(statistics) if bar.value]
    shapes = ", ".join(f"{bar.label}: {bar.words}" for bar in aspects[:8])
    return f"{count(statistics.num_images, 'image')} of {sizes} in {buckets}. Aspect ratios: {shapes or 'none'}"
