"""Where the entries of the file dialog are drawn: as rows, or as tiles with thumbnails."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BoardLayout:
    """Cells of one size in rows from the left; all sizes are in screen pixels."""

    num_cells: int
    columns: int
    cell_width: int
    cell_height: int

    @property
    def height(self) -> int:
        """The height of all rows."""
        return -(-self.num_cells // self.columns) * self.cell_height

    def place(self, index: int) -> tuple[int, int]:
        """Return the left and top edge of a cell."""
        row, column = divmod(index, self.columns)
        return column * self.cell_width, row * self.cell_height

    def visible(self, top: int, height: int) -> range:
        """Return the cells of which a part is between `top` and `top + height`."""
        first = max(0, top // self.cell_height) * self.columns
        last = (max(0, top + height - 1) // self.cell_height + 1) * self.columns
        return range(min(first, self.num_cells), min(last, self.num_cells))

    def index_at(self, x: int, y: int) -> int:
        """Return the cell at a point; -1 outside of all."""
        column, row = x // self.cell_width, y // self.cell_height
        index = row * self.columns + column
        return index if 0 <= column < self.columns and y >= 0 and index < self.num_cells else -1

    def top_to_see(self, index: int, top: int, height: int) -> int:
        """Return the top edge of the view, changed as little as needed to show a cell."""
        y = self.place(index)[1]
        return max(0, max(min(top, y), y + self.cell_height - max(height, self.cell_height)))


def rows_layout(num_cells: int, width: int, row_height: int) -> BoardLayout:
    """Return the layout of a list."""
    return BoardLayout(num_cells, 1, max(1, width), row_height)


def tiles_layout(num_cells: int, width: int, tile_width: int, tile_height: int) -> BoardLayout:
    """Return the layout of tiles, which share the width evenly."""
    columns = max(1, width // tile_width)
    return BoardLayout(num_cells, columns, max(1, width // columns), tile_height)
