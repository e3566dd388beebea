"""The geometry of a grid of equal cells, in pixels from the top left of the whole grid."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

_STEP_PX = 8  # of a card's width, so that resizing the window reloads few images


@dataclass(frozen=True, slots=True)
class GridLayout:
    """Cells in rows, with a gap to the right of and below each one.

    A cell reacts to the pointer in all of its height, or only in the `live_px` from `live_top` on. `left` and `top`
    are the place of the first cell.
    """

    count: int
    num_columns: int
    cell_width: int
    cell_height: int
    gap: int = 0
    live_top: int = 0
    live_px: int = 0
    left: int = 0
    top: int = 0

    @property
    def row_px(self) -> int:
        """The height of a row with the gap below it."""
        return self.cell_height + self.gap

    @property
    def column_px(self) -> int:
        """The width of a column with the gap to the right of it."""
        return self.cell_width + self.gap

    @property
    def height(self) -> int:
        """The height of the whole grid."""
        return self.top + -(-self.count // self.num_columns) * self.row_px

    @property
    def width(self) -> int:
        """The width of the whole grid."""
        return max(0, self.left + self.num_columns * self.column_px - self.gap) if self.count else 0

    def corner(self, number: int) -> tuple[int, int]:
        """Return the left and top of a cell."""
        row, column = divmod(number, self.num_columns)
        return self.left + column * self.column_px, self.top + row * self.row_px

    def visible(self, top: int, height: int, left: int = 0, width: int | None = None) -> Iterator[int]:
        """Yield the cells that are visible when the grid is scrolled to `left` and `top`."""
        top, left = top - self.top, left - self.left
        rows = range(max(0, top // self.row_px), (top + height - 1) // self.row_px + 1)
        end = self.num_columns if width is None else min(self.num_columns, (left + width - 1) // self.column_px + 1)
        columns = range(max(0, left // self.column_px), end)
        cells = (row * self.num_columns + column for row in rows for column in columns)
        return (number for number in cells if number < self.count)

    def at(self, x: int, y: int) -> int | None:
        """Return the cell at a place; None in a gap and in the part of a cell that does not react."""
        column, row = (x - self.left) // self.column_px, (y - self.top) // self.row_px
        number = row * self.num_columns + column
        if not (0 <= column < self.num_columns and row >= 0 and number < self.count):
            return None
        left, top = self.corner(number)
        first, height = top + self.live_top, self.live_px or self.cell_height
        return number if x < left + self.cell_width and first <= y < first + height else None

    def top_to_see(self, number: int, top: int, height: int) -> int:
        """Return the top edge of the view, changed as little as needed to show a cell."""
        y = self.corner(number)[1]
        return max(0, max(min(top, y), y + self.cell_height - max(height, self.cell_height)))

    def gap_at(self, x: int, y: int) -> int:
        """Return the cell before which something dropped at a place belongs; the number of cells for the end."""
        row = max(0, y // self.row_px)
        column = min(self.num_columns, max(0, round(x / self.column_px)))
        return max(0, min(self.count, row * self.num_columns + column))

    def edge_before(self, number: int) -> tuple[int, int]:
        """Return the place between a cell and the one before it."""
        if number and (number == self.count or number % self.num_columns == 0):
            x, y = self.corner(number - 1)
            if number == self.count:
                return x + self.cell_width + self.gap // 2, y
        x, y = self.corner(number)
        return max(self.gap // 4, x - self.gap // 2), y

    def step(self, key: str, number: int, height: int) -> int:
        """Return how far a key leads from a cell, which may be beyond the grid; `height` is the height of a page."""
        rows = max(1, height // self.row_px)
        return {
            "Left": -1,
            "Right": 1,
            "Up": -self.num_columns,
            "Down": self.num_columns,
            "Prior": -rows * self.num_columns,
            "Next": rows * self.num_columns,
            "Home": -number,
            "End": self.count - 1 - number,
        }[key]

    def go(self, number: int, key: str, height: int) -> int:
        """Return the cell that a key leads to from another one."""
        target = number + self.step(key, number, height)
        if 0 <= target < self.count:
            return target
        return number if key in ("Left", "Right", "Up") else min(max(0, target), self.count - 1)


def card_layout(
    count: int,
    width_px: int,
    height_px: int,
    *,
    min_px: int,
    most_px: int,
    gap_px: int,
    text_px: int,
    image_share: float,
) -> GridLayout:
    """Return the layout of cards that fill a width; a card is as high as its image and its text.

    Few cards are up to `most_px` wide, as far as all fit into the height.
    """
    most_columns = max(1, (width_px + gap_px) // (min_px + gap_px))
    fewest = min(most_columns, max(1, -(-(width_px + gap_px) // (most_px + gap_px))))
    for columns in range(fewest, most_columns + 1):
        card_width = max(min_px, (width_px - gap_px * (columns - 1)) // columns // _STEP_PX * _STEP_PX)
        layout = GridLayout(count, columns, card_width, round(card_width * image_share) + text_px, gap_px)
        if layout.height <= height_px:
            break
    return layout


def tile_layout(count: int, width: int, tile_width: int, tile_height: int) -> GridLayout:
    """Return the layout of tiles of at least a width, which share the whole width evenly."""
    columns = max(1, width // tile_width)
    return GridLayout(count, columns, max(1, width // columns), tile_height)


def largest_squares(count: int, width: int, height: int, gap: int, label: int) -> GridLayout:
    """Return squares with labels below, in the middle, in the rows and columns that make them largest."""

    def side_in(columns: int) -> int:
        rows = -(-count // columns)
        return min((width - gap * (columns - 1)) // columns, (height - gap * (rows - 1)) // rows - label)

    columns = max(range(max(1, count), 0, -1), key=side_in) if count else 1
    side, rows = max(1, side_in(columns)) if count else 1, -(-count // columns)
    left = (width - columns * side - gap * (columns - 1)) // 2
    top = max(0, (height - rows * (side + label) - gap * (rows - 1)) // 2)
    return GridLayout(count, columns, side, side + label, gap, live_px=side, left=left, top=top)
