"""The editor of a concept: its tabs, which are imported when they are opened first."""

from __future__ import annotations

import importlib
import tkinter as tk
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from modules.data.captions.settings import CAPTION_AUGMENTATION
from modules.data.concept import Concept
from modules.data.image_settings import IMAGE_AUGMENTATION, REFERENCE_IMAGES
from ui.features.concepts.scanning import Result, Scans
from ui.forms.context import Context
from ui.forms.layout import FormView
from ui.forms.records import Group, item_groups
from ui.widgets.controls import Button, Switch
from ui.widgets.dialog import Window
from ui.widgets.panel import Panel, call_later
from ui.widgets.scroll import ScrollFrame
from ui.widgets.tabs import Tab
from ui.widgets.theme import GAP, PAD
from ui.widgets.thumbnails import ThumbnailCache
from ui.widgets.variables import FlagVar

_TABS_OF_GROUPS = {IMAGE_AUGMENTATION: "Augmentation", CAPTION_AUGMENTATION: "Text"}
_TABS: Mapping[str, str] = {  # imported by name, so that the window opens without what other tabs need
    "General": "ui.features.concepts.general_tab:GeneralTab",
    "Augmentation": "ui.features.concepts.augmentation_tab:AugmentationTab",
    "Text": "ui.features.concepts.augmentation_tab:TextTab",
    "Statistics": "ui.features.concepts.statistics_tab:StatisticsTab",
    "Doctor": "ui.features.concepts.doctor_tab:DoctorTab",
}


class ConceptEditor(Window):
    """Edits the concept at a path of the config. Edits apply at once and can be undone."""

    def __init__(
        self,
        context: Context,
        scans: Scans,
        thumbnails: ThumbnailCache,
        path: str,
        open_other: Callable[[int], ConceptEditor],
    ) -> None:
        context.pump.expect_drawing()  # the folder may be being scanned
        super().__init__(context.root, context.theme, "Concept")
        self.path = path
        self.tabs: dict[str, EditorTab] = {}
        self.forms: dict[str, FormView] = {}
        self.open_tab = ""
        self._context = context
        self._scans = scans
        self._open_other = open_other
        self._list_path = path.rpartition(".")[0]
        self._num_items = len(context.form.value(self._list_path))
        self._editing = Editing(context, scans, thumbnails, path, self._scan_again)
        self._frames: dict[str, Panel] = {}
        self._titles: dict[str, Tab] = {}
        self.columnconfigure(0, weight=1)
        self.rowconfigure(1, weight=1)
        self._add_titles()
        self._add_footer()
        self.at_close(
            context.preferences.changed.subscribe(self._show_level),
            context.captions_changed.subscribe(self._scan_again),
            self._close_tabs,
        )
        self.redraw_after(context.pump, self._follow, context.form.changed)
        self.show("General")
        self.appear(1120, 720)

    @property
    def form_view(self) -> FormView:
        """The form of the tab that is shown."""
        return self.forms[self.open_tab]

    def show(self, title: str) -> EditorTab:
        """Show a tab; build it first if needed."""
        if self.open_tab:
            self._frames[self.open_tab].grid_remove()
        self.open_tab = title
        if title not in self.tabs:
            self._build(title)
        self._frames[title].grid(row=1, column=0, sticky="nsew")
        if title == "General":  # the other forms show all fields
            self.advanced_switch.pack(side="left")
        else:
            self.advanced_switch.pack_forget()
        for name, tab in self._titles.items():
            tab.mark(is_open=name == title, is_alone=False)
        self._follow()
        return self.tabs[title]

    def show_field(self, path: str) -> bool:
        """Show a field, in its tab."""
        title = next(
            (t for t, groups in self._groups().items() for g in groups for r in g.records if r.path == path), ""
        )
        if not title:
            return False
        self.show(title)
        return self.form_view.reveal(path) is not None

    def _close_tabs(self) -> None:
        for tab in self.tabs.values():
            tab.close()

    def _build(self, title: str) -> None:
        frame = self._frames[title] = Panel(self, self.theme)
        frame.rowconfigure(0, weight=1)
        frame.columnconfigure(1, weight=1)
        groups = self._groups().get(title, ())
        if groups:
            self.forms[title] = add_form(frame, self._context, groups, has_all_levels=title != "General")
        module, _, name = _TABS[title].partition(":")
        self.tabs[title] = getattr(importlib.import_module(module), name)(frame, self._editing)

    def _groups(self) -> dict[str, tuple[Group, ...]]:
        """Return the groups of fields of each tab that has a form."""
        result: dict[str, list[Group]] = {}
        for group in item_groups(Concept, self.path, "Concept"):
            groups = result.setdefault(_TABS_OF_GROUPS.get(group.title, "General"), [])
            # An editing model needs reference images before captions: they come after the folder of the images.
            groups.insert(1 if group.title == REFERENCE_IMAGES else len(groups), group)
        return {title: tuple(groups) for title, groups in result.items()}

    def _add_titles(self) -> None:
        px = self.theme.px
        bar = Panel(self, self.theme, "card")
        bar.grid(row=0, column=0, sticky="ew")
        inner = Panel(bar, self.theme, "card")
        inner.pack(side="left", padx=px(PAD), pady=(px(10), px(4)))
        for title in _TABS:
            tab = Tab(inner, self.theme, title, partial(self.show, title))
            tab.pack(side="left", padx=(0, px(GAP * 2)))
            self._titles[title] = tab
        for number, title in enumerate(_TABS, start=1):
            self.bind(f"<Alt-Key-{number}>", lambda _e, t=title: self.show(t))  # type: ignore[misc]

    def _add_footer(self) -> None:
        px = self.theme.px
        footer = Panel(self, self.theme)
        footer.grid(row=2, column=0, sticky="ew", padx=px(PAD), pady=px(10))
        self.advanced = FlagVar(master=self, value=self._context.preferences.now.show_advanced)
        self.advanced_switch = Switch(
            footer, self.theme, self.advanced, on="window", text="All settings",
            command=lambda: self._context.preferences.change(show_advanced=self.advanced.get()),
        )  # fmt: skip
        Button(footer, self.theme, "Close", self.close).pack(side="right")
        for label, by in (("Next concept ›", 1), ("‹ Previous concept", -1)):
            button = Button(footer, self.theme, label, partial(self._go, by), style="ghost")
            button.set_enabled(self._num_items > 1)
            button.pack(side="right", padx=(0, GAP))

    def _go(self, by: int) -> None:
        """Open the editor of another concept, at the same tab."""
        number = (self._editing.number + by) % self._num_items
        if number != self._editing.number and not self._is_outdated:
            title = self.open_tab
            self._open_other(number).show(title)

    def _show_level(self) -> None:
        self.advanced.set(self._context.preferences.now.show_advanced)

    def _scan_again(self) -> None:
        """Look at the folder again, after its files were changed."""
        if self.winfo_exists():
            self._scans.forget()
            self._follow()

    @property
    def _is_outdated(self) -> bool:
        """Whether concepts were added or removed, so that the window is about to close."""
        return len(self._context.form.value(self._list_path)) != self._num_items

    def _follow(self) -> None:
        if self._is_outdated:
            call_later(self, 0, self.close)  # not `after_idle`: a control that is being built might run that
            return
        concept = self._editing.concept
        self.title(f"Concept {concept.name or concept.path}")
        self._scans.want(concept, self._show_scan)
        self.tabs[self.open_tab].follow()

    def _show_scan(self) -> None:
        if self.winfo_exists():
            self._context.pump.redraw_soon(self, self._follow)


FORM_WIDTH = 420


@dataclass(frozen=True, slots=True)
class Editing:
    """The concept at a path of the config, its folder's scan, and the thumbnails."""

    context: Context
    scans: Scans
    thumbnails: ThumbnailCache
    path: str
    scan_again: Callable[[], None]

    @property
    def concept(self) -> Concept:
        """The concept as it is now."""
        concept: Concept = self.context.form.value(self.path)
        return concept

    @property
    def is_there(self) -> bool:
        """Whether the config still has the concept: until the editor closes, what was under way may still come."""
        return self.context.form.has(self.path)

    @property
    def number(self) -> int:
        """Its place among the concepts."""
        return int(self.path.rpartition(".")[2])

    @property
    def scan(self) -> Result | None:
        """The scan of its folder; a reason if that failed; None while it is unknown, or if the concept is gone."""
        return self.scans.of(self.concept) if self.is_there else None


class EditorTab(Protocol):
    """A tab, built when it is first shown."""

    frame: Panel

    def follow(self) -> None:
        """Called when the tab is shown, and while it is, when the config or the scan has changed."""

    def close(self) -> None:
        """Called once, before the window is destroyed."""


def add_form(master: tk.Misc, context: Context, groups: tuple[Group, ...], *, has_all_levels: bool) -> FormView:
    """Add a scrolling form at the left of a tab."""
    px = context.theme.px
    scroll = ScrollFrame(master, context.theme)
    scroll.configure(width=px(FORM_WIDTH))
    scroll.grid_propagate(False)
    scroll.grid(row=0, column=0, sticky="nsew", padx=(px(PAD), 0), pady=(px(PAD), 0))
    scroll.body.columnconfigure(0, weight=1)
    view = FormView(scroll.body, context, lambda: groups, max_columns=1, has_all_levels=has_all_levels)
    view.grid(row=0, column=0, sticky="new")
    view.build()
    return view
