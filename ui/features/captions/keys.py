"""The keys of the caption and mask editor."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ui.features.captions.editor import CaptionEditor

_FINER, _COARSER = 1 / 1.15, 1.15  # of the brush


def bind_keys(editor: CaptionEditor) -> None:
    """Bind the keys of the window, and those that work in its texts, too."""
    for sequence, command in _everywhere(editor).items():
        _bind(editor, sequence, command, is_for_text=True)
        for widget in (editor.caption_panel.text, editor.caption_panel.entry.tk_entry):  # before Tk's own
            widget.bind(sequence, partial(_run, command))
    for sequence, command in _outside_texts(editor).items():
        _bind(editor, sequence, command)


def _everywhere(editor: CaptionEditor) -> Mapping[str, Callable[[], object]]:
    return {
        "<Prior>": lambda: editor.model.step(-1),
        "<Next>": lambda: editor.model.step(1),
        "<Alt-Up>": lambda: editor.model.step(-1),
        "<Alt-Down>": lambda: editor.model.step(1),
        "<Control-s>": editor.save,
        "<Control-h>": editor.open_replace,
        "<Control-m>": editor.tool_bar.next_view,
        "<Control-f>": lambda: editor.list_panel.search.tk_entry.focus_set(),
        "<Control-d>": lambda: editor.tool_bar.choose("brush"),
    }


def _outside_texts(editor: CaptionEditor) -> Mapping[str, Callable[[], object]]:
    canvas, choose = editor.canvas, editor.tool_bar.choose
    return {
        "<v>": lambda: choose("move"),
        "<b>": lambda: choose("brush"),
        "<e>": lambda: choose("eraser"),
        "<f>": lambda: choose("fill"),
        "<bracketleft>": lambda: canvas.set_brush(canvas.brush_px * _FINER),
        "<bracketright>": lambda: canvas.set_brush(canvas.brush_px * _COARSER),
        "<Up>": lambda: editor.model.step(-1),
        "<Down>": lambda: editor.model.step(1),
        "<plus>": lambda: canvas.zoom(1.25),
        "<minus>": lambda: canvas.zoom(0.8),
        "<Key-0>": canvas.fit,
        "<Control-z>": editor.model.undo_mask,
        "<Control-Z>": editor.model.redo_mask,
        "<Control-y>": editor.model.redo_mask,
    }


def _bind(editor: CaptionEditor, sequence: str, command: Callable[[], object], *, is_for_text: bool = False) -> None:
    """Bind a key of the window; keys of texts stay theirs. None of them reaches the main window."""

    def pressed(event: tk.Event[Any]) -> str:
        if is_for_text or not isinstance(event.widget, tk.Text | tk.Entry):
            command()
        return "break"

    editor.bind(sequence, pressed)


def _run(command: Callable[[], object], _event: object) -> str:
    command()
    return "break"
