"""The windows about the program: About, the list of keys, the debug bundle."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path

from modules.system.hardware import torch_build
from modules.system.paths import PROGRAM_ROOT, from_root, log_dir, session_file, user_presets_dir
from modules.system.problem import count, format_size
from trainer.run_folder.bundle import BundleFile, collect_bundle, newest_run, write_bundle
from ui.forms.context import Context
from ui.loop.diagnostics import system_facts
from ui.widgets.actions import Action
from ui.widgets.controls import Button
from ui.widgets.dialog import Window
from ui.widgets.fitted_text import FittedText
from ui.widgets.panel import Panel, Text, WrappedText
from ui.widgets.table import Column, Table
from ui.widgets.textarea import TextBox
from ui.widgets.theme import GAP, PAD

DOCUMENTS = (("README", "README.md"), ("Window", "docs/window.md"), ("Settings", "docs/generated/settings.md"),
             ("Changes", "CHANGELOG.md"), ("Licence", "LICENSE"))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Fact:
    """A labelled fact of the installation."""

    label: str
    value: str
    is_path: bool = False


@dataclass(frozen=True, slots=True)
class KeyRow:
    """A key or click, and what it does; the heading groups rows."""

    heading: str
    key: str
    what: str


def about_lines() -> tuple[Fact, ...]:
    """Return the facts of this installation."""
    project = tomllib.loads((PROGRAM_ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    python, *packages = system_facts()
    return (
        Fact("Version", project["version"]),
        Fact("Licence", project["license"]),
        Fact("System", python),
        Fact("Packages", ", ".join(packages)),
        Fact("torch build", torch_build() or "default"),
        Fact("Program", str(PROGRAM_ROOT), is_path=True),
        Fact("Your presets", str(user_presets_dir()), is_path=True),
        Fact("Sessions", str(session_file().parent), is_path=True),
        Fact("Logs", str(log_dir()), is_path=True),
    )


def key_rows(actions: Iterable[Action]) -> tuple[KeyRow, ...]:
    """Return every key of the window: of the actions, the lists and the dialogs."""
    keyed = [a for a in actions if a.shortcut]
    pages = [a for a in keyed if a.name.startswith("page_")]
    others = [a for a in keyed if a not in pages]
    return (
        *(KeyRow("Actions", a.shortcut, a.help or a.label.rstrip("…")) for a in others),
        *(KeyRow("Pages", a.shortcut, a.label) for a in pages),
        *(KeyRow(*row) for row in _OTHER_KEYS),
    )


_OTHER_KEYS = (
    ("Everywhere", "Tab, Shift+Tab", "Next and previous field"),
    ("Everywhere", "Space or Return", "Press the button, flip the switch or open the list that has the focus"),
    ("Everywhere", "Escape", "Close the window or dialog"),
    ("Lists", "Up, Down, Page Up, Page Down, Home, End", "Select"),
    ("Lists", "Return or double click", "Open or show the selected entry"),
    ("Lists", "Delete", "Delete or revert the selected entries, where that is possible"),
    ("File dialog", "Letters", "Find an entry"),
    ("File dialog", "Backspace or Alt+Up", "The folder above"),
    ("File dialog", "Ctrl+L", "Type a path; Tab completes it"),
    ("File dialog", "Ctrl+H", "Show or hide hidden files"),
    ("File dialog", "Shift+Up, Shift+Down, Ctrl+A", "Select several folders"),
    ("Choose page", "Left or 1, Right or 2", "This image is better"),
    ("Choose page", "T or Down", "A tie"),
    ("Choose page", "S or Space", "Skip"),
    ("Choose page", "U or Backspace", "Take back the last choice"),
)


_WRAP_PX = 430
_COLUMNS = (
    Column("#0", "Where", 110),
    Column("key", "Key", 210),
    Column("what", "What it does", 590, is_stretched=True, is_fitted=True),
)


class About(Window):
    """Version, licence, environment and the documents by name."""

    is_single = True

    def __init__(self, context: Context) -> None:
        super().__init__(context.root, context.theme, "About Darkroom")
        self._context = context
        theme, px = context.theme, context.theme.px
        Text(self, theme, "Darkroom", role="title").pack(anchor="w", padx=px(PAD), pady=(px(PAD), 0))
        Text(self, theme, "Trains image models on your own machine.", colour="muted").pack(anchor="w", padx=px(PAD))
        table = Panel(self, theme)
        table.pack(fill="x", padx=px(PAD), pady=px(12))
        self.lines = about_lines()
        table.columnconfigure(1, minsize=px(_WRAP_PX))
        for row, fact in enumerate(self.lines):
            Text(table, theme, fact.label, colour="muted").grid(
                row=row, column=0, sticky="nw", padx=(0, px(PAD)), pady=px(2)
            )
            if fact.is_path:
                text: Text = self._path(table, fact.value)
            else:
                text = Text(table, theme, fact.value, wrap_px=_WRAP_PX)
            text.grid(row=row, column=1, sticky="ew", pady=px(2))
        documents = Panel(self, theme)
        documents.pack(fill="x", padx=px(PAD))
        for label, name in DOCUMENTS:
            if (PROGRAM_ROOT / name).exists():
                open_it = partial(context.interaction.open_path, PROGRAM_ROOT / name)
                Button(documents, theme, label, open_it, width=64).pack(side="left", padx=(0, GAP))
        footer = self.add_footer(style="primary")
        Button(footer, theme, "Copy", self.copy, width=92).pack(side="right", padx=(0, GAP))
        self.appear()
        self.resizable(False, False)
        self.focus_set()

    def _path(self, table: Panel, path: str) -> FittedText:
        """Return a path in a line, with the end in sight; the tooltip has all of it."""
        text = FittedText(table, self.theme, path, keeps_end=True)
        self._context.tips.attach(text, lambda: text.hidden_text)
        return text

    def copy(self) -> None:
        """Copy the facts as text."""
        self.clipboard_clear()
        self.clipboard_append("\n".join(f"{fact.label}: {fact.value}" for fact in self.lines))
        self._context.notify("Copied.")


class Keys(Window):
    """Every key of the window, from the table of actions."""

    is_single = True

    def __init__(self, context: Context) -> None:
        super().__init__(context.root, context.theme, "Keys")
        theme, px = context.theme, context.theme.px
        self.rows = key_rows(context.actions)
        Text(self, theme, "Keys", role="heading").pack(anchor="w", padx=px(PAD), pady=(px(PAD), px(8)))
        self.add_footer(style="primary")
        self.table = Table(self, theme, _COLUMNS)
        self.table.pack(fill="both", expand=True, padx=px(PAD))
        headings = [
            r.heading if i == 0 or self.rows[i - 1].heading != r.heading else "" for i, r in enumerate(self.rows)
        ]
        self.table.set_rows([(f" {h}", (r.key, r.what), "") for h, r in zip(headings, self.rows, strict=True)])
        self.appear(960, 600)
        self.table.tree.focus_set()


_MAX_CHARS = 200_000
_INDENT_PX = 24  # of a wrapped line
_KINDS = (("Zip file", "*.zip"),)
_BUNDLE_COLUMNS = (Column("#0", "File", 150), Column("size", "Size", 90, "e"), Column("what", "Contents", 300))
_INTRO = (
    "For a bug report: settings, versions, hardware, the log of this window and the last run's events. Tokens and "
    "passwords are removed, your home folder is written as ~. It contains no images, captions or weights; prompts and "
    "paths that are part of the settings stay. Nothing is sent anywhere."
)


class BundleWindow(Window):
    """Lists the files, shows the selected one, and saves all as a zip file."""

    is_single = True

    def __init__(self, context: Context, log_file: Path | None) -> None:
        super().__init__(context.root, context.theme, "Debug bundle")
        self.files: tuple[BundleFile, ...] = ()
        self._context = context
        theme, px = context.theme, context.theme.px
        Text(self, theme, "Debug bundle", role="heading").pack(anchor="w", padx=px(PAD), pady=(px(PAD), px(4)))
        WrappedText(self, theme, _INTRO, colour="muted").pack(fill="x", padx=px(PAD), pady=(0, px(10)))
        self.add_footer()
        self.save_button = self.add_main_button("Save…", self.save)
        self.table = Table(self, theme, _BUNDLE_COLUMNS, num_rows=6)
        self.table.tree.configure(selectmode="browse")
        self.table.tree.column("what", stretch=True)
        self.table.pack(fill="x", padx=px(PAD), pady=(0, px(10)))
        self.table.on_events({"<<TreeviewSelect>>": self._show_selected})
        box = TextBox(self, theme, wrap="word")
        box.pack(fill="both", expand=True, padx=px(PAD))
        self.text = box.text
        self.text.tag_configure("line", lmargin2=px(_INDENT_PX))
        self.save_button.set_enabled(False)
        self._collect(log_file)
        self.appear(860, 560)

    def save(self) -> None:
        """Ask for a file and write it in the background."""
        context = self._context
        start = context.preferences.last_folder / f"darkroom-bundle-{datetime.now():%Y-%m-%d}.zip"
        path = context.interaction.ask_save_file("Save the debug bundle", start, _KINDS)
        if path is None:
            return
        path = path if path.suffix else path.with_suffix(".zip")

        def succeed(_none: None) -> None:
            context.notify(f"Saved {path.name} with {count(len(self.files), 'file')}.")

        fail = partial(context.show_error, "The bundle could not be saved", advice="Choose another folder.")
        context.pump.background.run(partial(write_bundle, path, self.files), succeed, fail)
        self.close()

    def _collect(self, log_file: Path | None) -> None:
        context = self._context
        config, started = context.form.config, context.session.state.started
        workspace = from_root(config.general.workspace_dir)

        def work() -> tuple[BundleFile, ...]:
            run_dir = Path(started.run_dir) if started is not None else newest_run(workspace)
            return collect_bundle(config, run_dir=run_dir, log_file=log_file)

        context.pump.background.run(work, self._show)

    def _show(self, files: Sequence[BundleFile]) -> None:
        if not self.winfo_exists():
            return
        self.files = tuple(files)
        rows = [(f"  {f.name}", (format_size(len(f.text.encode())), f.what), "") for f in files]
        self.table.set_rows(rows)
        self.table.select([0])
        self.save_button.set_enabled(True)

    def _show_selected(self) -> None:
        if self.table.selected and self.files:
            self.text.configure(state="normal")
            self.text.delete("1.0", "end")
            self.text.insert("1.0", self.files[self.table.selected[0]].text[:_MAX_CHARS], "line")
            self.text.configure(state="disabled")
