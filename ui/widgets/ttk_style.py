"""The ttk theme of tables."""

from __future__ import annotations

import tkinter as tk
from tkinter import ttk
from typing import Any

from ui.widgets.theme import Theme

# A row without the arrow of a branch: our tables are flat.
_FLAT_ITEM: Any = [
    (
        "Treeitem.padding",
        {
            "sticky": "nswe",
            "children": [
                ("Treeitem.image", {"side": "left", "sticky": ""}),
                ("Treeitem.text", {"side": "left", "sticky": ""}),
            ],
        },
    )
]


def style_ttk(root: tk.Misc, theme: Theme) -> None:
    """Set the styles; called again when the mode changes."""
    style = ttk.Style(root)
    if style.theme_use() != "clam":
        style.theme_use("clam")
    colour = theme.colour
    style.configure(
        ".",
        background=colour("window"),
        foreground=colour("text"),
        fieldbackground=colour("field"),
        bordercolor=colour("line"),
        lightcolor=colour("line"),
        darkcolor=colour("line"),
        troughcolor=colour("window"),
        selectbackground=colour("accent"),
        selectforeground=colour("on_accent"),
        insertcolor=colour("text"),
        font=theme.font("body"),
    )
    style.map(".", background=[("active", colour("field_hover"))], foreground=[("disabled", colour("faint"))])
    _style_tables(style, theme)


def _style_tables(style: ttk.Style, theme: Theme) -> None:
    colour, px = theme.colour, theme.px
    style.configure(
        "Treeview",
        background=colour("card"),
        fieldbackground=colour("card"),
        foreground=colour("text"),
        rowheight=px(30),
        borderwidth=0,
        relief="flat",
    )
    style.layout("Treeview", [("Treeview.treearea", {"sticky": "nswe"})])  # without a border
    style.layout("Treeview.Item", _FLAT_ITEM)
    style.configure(
        "Treeview.Heading",
        background=colour("card"),
        foreground=colour("muted"),
        font=theme.font("small"),
        relief="flat",
        borderwidth=0,
        padding=(px(3), px(6)),
    )
    style.map("Treeview.Heading", background=[("active", colour("card"))])
    style.map(
        "Treeview",
        background=[("selected", colour("selection"))],
        foreground=[("selected", colour("text"))],
    )
