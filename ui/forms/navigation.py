"""The open page, and requests to show a field; the shell follows both."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ui.forms.model import FormModel
from ui.forms.records import nearest_field
from ui.forms.setting_pages import SIMPLE, TOP_BAR, PageSpec, page_of
from ui.loop.signal import Signal


class Navigation:
    """The open page, and the requests to show a page or a field."""

    def __init__(
        self,
        form: FormModel,
        pages: Sequence[str],
        page: str,
        *,
        is_simple: Callable[[], bool] = lambda: False,
        simple_fields: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        """Open a page. Where `is_simple`, the page of the simple view is preferred for its fields."""
        self._pages, self._is_simple, self._simple_fields = pages, is_simple, simple_fields
        self.page = self._valid_page(page)
        self._form = form
        self.page_wanted: Signal[[str]] = Signal()
        self.field_wanted: Signal[[str, str]] = Signal()  # the page, already open, and the path
        self.full_page_wanted: Signal[[PageSpec]] = Signal()  # opened for a field that the simple view does not have
        self.top_bar_wanted: Signal[[str]] = Signal()  # the path of a choice in the top bar

    def open(self, key: str) -> None:
        """Show a page."""
        self.page = self._valid_page(key)
        self.page_wanted(self.page)

    def go_to(self, path: str) -> bool:
        """Show the field at a path, or the nearest one that contains it; return whether the window has it."""
        if path in TOP_BAR:
            self.top_bar_wanted(path)
            return True
        page = page_of(type(self._form.config), path)
        if page is None:
            return False
        field = nearest_field(self._form.config, path)
        is_simple = self._is_simple()
        is_there = is_simple and any(f"{field}.".startswith(f"{f}.") for f in self._simple_fields())
        key = SIMPLE if is_there else page.key
        self.open(key)
        self.field_wanted(key, field)
        if is_simple and key != SIMPLE:
            self.full_page_wanted(page)
        return True

    def _valid_page(self, key: str) -> str:
        """Return the key of a page; the first page's for an unknown key."""
        return key if key in self._pages else self._pages[0]
