"""The presets as submenus; a long one leads to the list in which they are searched."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Sequence
from functools import partial

from modules.config.presets import Preset, list_presets
from ui.features.presets.model import preset_groups
from ui.forms.context import Context
from ui.widgets.menu import add_submenu, keep_on_screen


def add_presets(menu: tk.Menu, context: Context, presets: Sequence[Preset], choose: Callable[[Preset], object]) -> None:
    """Add a submenu for each group of presets; one that is too long for the screen leads to the list."""
    for group in preset_groups(presets):
        inner = add_submenu(menu, context.theme, group.title)
        for heading, part in group.parts:
            if heading:
                inner.add_command(label=heading, state="disabled")
            for preset in part:
                label = f"   {preset.name}" if heading else preset.name
                inner.add_command(label=label, command=partial(choose, preset))
        keep_on_screen(inner, lambda: open_list(context, choose))


def read_menu() -> None:
    """Read what the menus show of the built-in presets, so that a click does not wait for 150 files."""
    preset_groups(list_presets())


def open_list(context: Context, choose: Callable[[Preset], object]) -> None:
    """Open the list of presets, whose window is imported when it is opened first."""
    from ui.features.presets.window import PresetList

    PresetList(context, choose)
