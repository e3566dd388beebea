"""The frame of the window: side bar, top bar, the open page, the list of findings, bottom bar."""

from __future__ import annotations

import importlib
import logging
import time
import tkinter as tk
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from modules.system.factories import load_factory
from ui.app.bottom_bar import BottomBar
from ui.app.catalogue import PAGES, page_named, view_of
from ui.app.message_bars import FindingsBar, NoticeBar
from ui.app.side_bar import SideBar
from ui.app.top_bar import TopBar
from ui.features.first_steps import FirstStepsBar
from ui.forms.context import Context
from ui.forms.page import Page, PageWithFields, page_task
from ui.forms.setting_pages import PageSpec
from ui.loop.pump import Pump
from ui.widgets.panel import Panel, focused_widget
from ui.widgets.theme import is_low
from ui.widgets.variables import remove_traces, variables_in

_log = logging.getLogger(__name__)
_PAUSE_SECONDS = 0.3  # before the import of each page


class Shell(Panel):
    """Builds each page when first opened, keeps it, and hides it while another is open."""

    def __init__(self, context: Context) -> None:
        super().__init__(context.root, context.theme)
        self.pages: dict[str, Page] = {}
        self.build_seconds: dict[str, float] = {}
        self._context = context
        self._open = ""
        self._is_low: bool | None = None
        self.columnconfigure(1, weight=1)
        self.rowconfigure(1, weight=1)
        self.side_bar = SideBar(self, context)
        self.side_bar.grid(row=0, column=0, rowspan=5, sticky="ns")
        self.top_bar = TopBar(self, context)
        self.top_bar.grid(row=0, column=1, sticky="ew")
        self.host = Panel(self, context.theme)
        self.host.grid(row=1, column=1, sticky="nsew")
        self.host.columnconfigure(0, weight=1)
        self.host.rowconfigure(0, weight=1)
        # Below the page: what is under the pointer must not move when a step or a notice comes or goes.
        self.first_steps = FirstStepsBar(self, context)
        self.first_steps.grid(row=2, column=1, sticky="ew")
        self.first_steps.refresh()
        self.notice_bar = NoticeBar(self, context)
        self.notice_bar.grid(row=3, column=1, sticky="ew")
        self.notice_bar.refresh()
        self.findings_bar = FindingsBar(self, context)
        self.findings_bar.grid(row=4, column=1, sticky="ew")
        self.findings_bar.refresh()
        self.bottom_bar = BottomBar(self, context)
        self.bottom_bar.grid(row=5, column=0, columnspan=2, sticky="ew")
        context.navigation.page_wanted.subscribe(self.show_page)
        context.navigation.field_wanted.subscribe(self._show_field)
        self.bind("<Configure>", lambda _e: self._fit_bars())
        context.root.bind("<Tab>", self._enter_page, add="+")

    def show_page(self, key: str) -> None:
        """Show a page; build it first if needed."""
        if key != self._open:
            self._show_other(key)
        focused, frame = focused_widget(self), self.pages[key].frame
        if focused is None or (focused.winfo_toplevel() is self._context.root and not _is_within(focused, frame)):
            frame.focus_set()  # else keys would reach the hidden page, and Tab would begin at the side bar

    def _show_other(self, key: str) -> None:
        self._context.pump.expect_drawing()
        page = self._start_page(key)
        if self._open:
            self.pages[self._open].frame.grid_remove()
            self.leave()
        self._open = key
        page.frame.is_shown = True
        page.frame.grid(row=0, column=0, sticky="nsew")
        page.on_show()

    def page(self, key: str) -> Page:
        """Return a page; build it first if needed. One that is built in parts is complete then."""
        page = self._start_page(key)
        self._context.pump.finish(page_task(key))
        return page

    def _start_page(self, key: str) -> Page:
        """Return a page, of which parts may still be missing."""
        if key not in self.pages:
            begun = time.perf_counter()
            self.pages[key] = _build(self.host, self._context, page_named(key))
            self.build_seconds[key] = time.perf_counter() - begun
            _log.info("Built the page %s in %.0f ms", key, 1000 * self.build_seconds[key])
        return self.pages[key]

    def leave(self) -> None:
        """Hide the open page, so that it keeps its entries, before the shell is destroyed."""
        if self._open:
            frame = self.pages[self._open].frame
            frame.is_shown = False
            frame.hidden()

    def destroy(self) -> None:
        """Also remove the traces of its variables, which would keep the pages alive."""
        variables = variables_in(self)
        super().destroy()
        remove_traces(variables)

    def _fit_bars(self) -> None:
        """Make the bars below the page compact in a low window."""
        low = is_low(self.winfo_height(), self.theme)
        if low != self._is_low and self.winfo_height() > 1:
            self._is_low = low
            for bar in (self.first_steps, self.notice_bar):
                self._context.pump.redraw_soon(bar, bar.refresh)

    def _enter_page(self, event: tk.Event[Any]) -> str | None:
        """Let Tab begin at the page if nothing has the focus, such as when the widget that had it is gone."""
        if event.widget is not self._context.root or not self._open:
            return None
        following = self.pages[self._open].frame.tk_focusNext()
        if following is not None:
            following.focus_set()
        return "break"

    def _show_field(self, key: str, path: str) -> None:
        page = self.page(key)
        if isinstance(page, PageWithFields):
            page.show_field(path)


def _is_within(widget: tk.Misc, frame: tk.Misc) -> bool:
    return f"{widget}.".startswith(f"{frame}.")


def prepare_pages(pump: Pump) -> None:
    """Import the classes of all pages and read the presets for their menu: the window starts without them.

    On a background thread, one at a time with pauses, once the first page is drawn: while a thread imports, every call
    of Tk waits for it.
    """
    modules = dict.fromkeys(view_of(spec).partition(":")[0] for spec in PAGES)
    imports = (partial(importlib.import_module, module) for module in modules)
    jobs: Iterator[Callable[[], Any]] = iter((*imports, _read_preset_menu))

    def do_next() -> None:
        if job := next(jobs, None):
            pump.background.run(job, lambda _result: wait())

    def wait() -> None:
        pump.redraw_soon(prepare_pages, do_next, quiet_seconds=_PAUSE_SECONDS)

    wait()


def _read_preset_menu() -> None:
    load_factory("ui.features.presets.menu:read_menu")()


def _build(host: tk.Misc, context: Context, spec: PageSpec) -> Page:
    """Import a page's class by name, so that the window starts without loading unopened pages."""
    module, _, name = view_of(spec).partition(":")
    page: Page = getattr(importlib.import_module(module), name)(host, context, spec)
    return page
