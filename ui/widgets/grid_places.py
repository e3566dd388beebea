"""Where the cards of a grid are: pure numbers."""

from __future__ import annotations

from dataclasses import dataclass

_STEP_PX = 8  # of a card's width, so that resizing the window reloads few images


@dataclass(frozen=True, slots=True)
class GridPlaces:
    """Cards of one size in rows, in pixels from the top left of the whole grid."""

    count: int
    num_columns: int
    card_width: int
    card_height: int
    image_height: int
    gap: int

    @classmethod
    def fitting(
        cls,
        count: int,
        width_px: int,
        height_px: int,
        *,
        min_px: int,
        most_px: int,
        gap_px: int,
        text_px: int,
        image_share: float,
    ) -> GridPlaces:
        """Return the places of cards that fill a width; a card is as high as its image and its text.

        Few cards are up to `most_px` wide, as far as all fit into the height.
        """
        most_columns = max(1, (width_px + gap_px) // (min_px + gap_px))
        fewest = min(most_columns, max(1, -(-(width_px + gap_px) // (most_px + gap_px))))
        for columns in range(fewest, most_columns + 1):
            card_width = max(min_px, (width_px - gap_px * (columns - 1)) // columns // _STEP_PX * _STEP_PX)
            image_height = round(card_width * image_share)
            places = cls(count, columns, card_width, image_height + text_px, image_height, gap_px)
            if places.height <= height_px:
                break
        return places

    @property
    def height(self) -> int:
        """The height of the whole grid."""
        return -(-self.count // self.num_columns) * self._row

    @property
    def _row(self) -> int:
        return self.card_height + self.gap

    def corner(self, number: int) -> tuple[int, int]:
        """Return the left and top of a card."""
        row, column = divmod(number, self.num_columns)
        return column * (self.card_width + self.gap), row * self._row

    def top_of(self, number: int) -> int:
        """Return the top of a card."""
        return self.corner(number)[1]

    def in_sight(self, top: int, height: int) -> range:
        """Return the cards that are visible when the grid is scrolled down to `top`."""
        first = max(0, top // self._row * self.num_columns)
        last = ((top + height) // self._row + 1) * self.num_columns
        return range(min(first, self.count), min(self.count, last))

    def at(self, x: int, y: int) -> int | None:
        """Return the card at a place; None in a gap."""
        column, row = x // (self.card_width + self.gap), y // self._row
        number = row * self.num_columns + column
        if not (0 <= column < self.num_columns and 0 <= number < self.count):
            return None
        left, top = self.corner(number)
        return number if x < left + self.card_width and y < top + self.card_height else None

    def gap_at(self, x: int, y: int) -> int:
        """Return the card before which something dropped at a place belongs; the number of cards for the end."""
        row = max(0, y // self._row)
        column = min(self.num_columns, max(0, round(x / (self.card_width + self.gap))))
        return max(0, min(self.count, row * self.num_columns + column))

    def edge_before(self, number: int) -> tuple[int, int]:
        """Return the place between a card and the one before it."""
        if number and (number == self.count or number % self.num_columns == 0):
            x, y = self.corner(number - 1)
            if number == self.count:
                return x + self.card_width + self.gap // 2, y
        x, y = self.corner(number)
        return max(self.gap // 4, x - self.gap // 2), y

    def beside(self, number: int, key: str, height: int) -> int:
        """Return the card that an arrow key leads to from another one; `height` is that of a page."""
        rows = max(1, height // self._row)
        steps = {
            "Left": -1,
            "Right": 1,
            "Up": -self.num_columns,
            "Down": self.num_columns,
            "Prior": -rows * self.num_columns,
            "Next": rows * self.num_columns,
            "Home": -number,
            "End": self.count - 1 - number,
        }
        target = number + steps[key]
        if 0 <= target < self.count:
            return target
        return number if key in ("Left", "Right", "Up") else min(max(0, target), self.count - 1)
