"""The root window: its scale, mode and place; the one place that configures customtkinter."""

from __future__ import annotations

import ctypes
import logging
import os
import shutil
import subprocess
import sys
import tkinter as tk
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tkinter import ttk
from typing import Any

from ui.widgets.ctk import ctk
from ui.widgets.panel import ThemedWidget, focused_widget
from ui.widgets.theme import Mode, Theme

_DESIGN_DPI = 96
_MAX_SCALE = 3.0
# of labels and canvas items, menus, entries, texts; and of customtkinter's round corners, which begin with size 0
_FIRST_FONTS = ("TkDefaultFont", "TkMenuFont", "TkTextFont", "TkFixedFont", "CustomTkinter_shapes_font 0")


def create_root(theme: Theme, *, scale_percent: int = 0) -> tk.Tk:
    """Create the hidden root window and set the scale of theme and customtkinter; 0 % means measured."""
    _become_dpi_aware()
    # Both trackers poll ten to thirty times a second; mode and scale are set below instead.
    ctk.AppearanceModeTracker.update_loop_running = True
    ctk.ScalingTracker.update_loop_running = True
    ctk.deactivate_automatic_dpi_awareness()
    ctk.set_appearance_mode(theme.mode)
    root = tk.Tk(className="Darkroom")
    root.withdraw()
    set_scale(root, theme, scale_percent)
    root.configure(background=theme.colour("window"))
    _keep_fonts_open(root)
    return root


def _keep_fonts_open(root: tk.Tk) -> None:
    """Keep the fonts that new widgets have before they get their own in use, by labels that are never shown.

    Tk closes a font when its last user gets another one. It would open these again for every label, menu and drawn
    corner, which takes forty times as long as the rest of a label.
    """
    for font in _FIRST_FONTS:
        tk.Label(root, font=font)


def set_scale(root: tk.Tk, theme: Theme, scale_percent: int) -> None:
    """Set the scale of widgets that are built from now on; 0 % means measured."""
    theme.scale = scale_percent / 100 if scale_percent else screen_scale(root)
    ctk.set_widget_scaling(theme.scale)


def switch_mode(root: tk.Tk, theme: Theme, mode: Mode) -> Iterator[None]:
    """Switch new widgets between dark and light now, and the present ones with the iterator that is returned.

    Its first `next` switches what is visible, each other one a hidden widget.
    """
    theme.mode = mode
    callbacks, ctk.AppearanceModeTracker.callback_list = ctk.AppearanceModeTracker.callback_list, []
    try:
        ctk.set_appearance_mode(mode)
    finally:
        ctk.AppearanceModeTracker.callback_list = callbacks
    return _switching_mode(root, theme)


def _switching_mode(root: tk.Tk, theme: Theme) -> Iterator[None]:
    of_widgets = {id(callback.__self__): callback for callback in ctk.AppearanceModeTracker.callback_list}
    hidden: list[tk.Misc] = []

    def switch(widget: tk.Misc) -> None:
        if isinstance(widget, ThemedWidget):
            widget.apply_theme()
        if (callback := of_widgets.get(id(widget))) is not None:
            callback(theme.mode.capitalize())

    def switch_visible(widget: tk.Misc) -> None:
        if widget is root or widget.winfo_viewable():
            switch(widget)
        else:
            hidden.append(widget)
        for child in widget.winfo_children():
            switch_visible(child)

    root.configure(background=theme.colour("window"))
    switch_visible(root)
    yield
    for widget in hidden:
        if widget.winfo_exists():
            switch(widget)
        yield


def screen_scale(root: tk.Tk) -> float:
    """Return the screen pixels per design pixel, in quarters."""
    if sys.platform == "darwin":
        return 1.0  # points, not pixels
    dpi = max(root.winfo_fpixels("1i"), _xft_dpi())
    scale = max(dpi / _DESIGN_DPI, _number(os.environ.get("GDK_SCALE", "")))
    return min(_MAX_SCALE, max(1.0, round(scale * 4) / 4))


def forget_window(window: tk.Tk | tk.Toplevel) -> None:
    """Remove a destroyed window from customtkinter's registry; its own Toplevel does this, ours are plain."""
    ctk.ScalingTracker.window_widgets_dict.pop(window, None)
    ctk.ScalingTracker.window_dpi_scaling_dict.pop(window, None)


def cancel_pending(root: tk.Tk) -> None:
    """Cancel everything that is scheduled in a root which is about to be destroyed.

    Tk would still run it in the event loop of the next root, where its commands are gone.
    """
    for name in root.tk.splitlist(root.tk.call("after", "info")):
        root.tk.call("after", "cancel", name)


def bind_clicks(root: tk.Tk) -> None:
    """Take the focus from an entry when the user clicks outside it, unless the click opens a window, which gets it."""
    windows: set[str] = set()  # that were open before

    def has_opened() -> bool:
        before = set(windows)
        windows.clear()
        shown = (w for w in root.winfo_children() if isinstance(w, tk.Toplevel) and w.wm_state() != "withdrawn")
        windows.update(map(str, shown))  # without the tooltip, which a click hides
        return not windows <= before

    def clicked(event: tk.Event[Any]) -> None:
        if has_opened():
            return
        is_beside = isinstance(event.widget, tk.Frame | tk.Label)
        if is_beside and isinstance(focused_widget(root), tk.Entry | tk.Text):
            event.widget.winfo_toplevel().focus_set()

    root.bind_all("<Button-1>", clicked, add=True)
    for sequence in ("<ButtonRelease-1>", "<KeyRelease>"):  # which may also open one
        root.bind_all(sequence, lambda _event: has_opened(), add=True)


def bind_keypad(root: tk.Tk) -> None:
    """Let Enter of the number pad do what Return does, where it has no binding of its own."""

    def pressed(event: tk.Event[Any]) -> None:
        if isinstance(event.widget, tk.Misc):  # a menu has none
            event.widget.event_generate("<Return>", state=event.state)

    root.bind_all("<KP_Enter>", pressed, add=True)


def _xft_dpi() -> float:
    """Return the desktop's resolution setting on X11, which the screen's size does not reveal; else 0."""
    xrdb = shutil.which("xrdb") if sys.platform.startswith("linux") else None
    if xrdb is None:
        return 0.0
    try:
        answer = subprocess.run([xrdb, "-query"], capture_output=True, text=True, timeout=1, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return 0.0
    return next((_number(line.split(":")[1]) for line in answer.splitlines() if line.startswith("Xft.dpi:")), 0.0)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def _become_dpi_aware() -> None:
    if sys.platform == "win32":
        ctypes.windll.shcore.SetProcessDpiAwareness(1)


DEFAULT_SIZE = (1180, 780)
MIN_SIZE = (1024, 600)
FRAME_PX = 60  # of the screen's height: the title of the window, and the desktop's bar


def place(root: tk.Tk, theme: Theme, geometry: str) -> None:
    """Restore the last size and position if the window is on the screen with it; else use the default."""
    screen, _least = _limit(root, theme)
    root.geometry(fitting_geometry(geometry, screen) or _default_geometry(theme, screen))


def grow_to_scale(root: tk.Tk, theme: Theme) -> None:
    """After a change of the scale, make an open window as large as it has to be; it stays on the screen."""
    screen, least = _limit(root, theme)
    size = (root.winfo_width(), root.winfo_height())
    wanted = (max(size[0], least[0]), max(size[1], least[1]))
    if wanted != size:
        corner = (root.winfo_x(), root.winfo_y())
        x, y = (max(0, min(at, have - want)) for at, have, want in zip(corner, screen, wanted, strict=True))
        root.geometry(f"{wanted[0]}x{wanted[1]}+{x}+{y}")


def fitting_geometry(geometry: str, screen: tuple[int, int]) -> str:
    """Return a saved geometry if the window is on the screen with it, moved up if its lower end is not; else empty."""
    try:
        size, x, y = geometry.split("+")
        width, height = (int(n) for n in size.split("x"))
        left, top = int(x), int(y)
    except ValueError:
        return ""
    is_on_screen = 0 <= left < screen[0] - 100 and 0 <= top < screen[1] - 100
    if not is_on_screen or width > screen[0] or height > screen[1]:
        return ""
    return f"{width}x{height}+{left}+{min(top, screen[1] - height)}"


def _limit(root: tk.Tk, theme: Theme) -> tuple[tuple[int, int], tuple[int, int]]:
    """Set the smallest size; return the size of the screen, and the smallest one."""
    screen = (root.winfo_screenwidth(), root.winfo_screenheight())
    least = (min(theme.px(MIN_SIZE[0]), screen[0]), min(theme.px(MIN_SIZE[1]), screen[1] - FRAME_PX))
    root.minsize(*least)
    return screen, least


def _default_geometry(theme: Theme, screen: tuple[int, int]) -> str:
    room = (screen[0], screen[1] - FRAME_PX)
    width, height = (min(theme.px(want), have) for want, have in zip(DEFAULT_SIZE, room, strict=True))
    return f"{width}x{height}+{(screen[0] - width) // 2}+{(room[1] - height) // 3}"


_log = logging.getLogger(__name__)


def accept_paths(root: tk.Tk, widget: tk.Misc, on_drop: Callable[[Sequence[Path]], object]) -> bool:
    """Call `on_drop` with the paths dropped on a widget or its children; return whether dropping works.

    A child that accepts paths itself takes precedence.
    """
    try:
        from tkinterdnd2 import DND_FILES, TkinterDnD  # an optional package

        TkinterDnD._require(root)
    except (ImportError, RuntimeError, tk.TclError):
        _log.info("Drag and drop is not available here")
        return False

    def dropped(event: Any) -> str:
        on_drop([Path(name) for name in root.tk.splitlist(event.data)])
        return str(event.action)

    target: Any = widget
    target.drop_target_register(DND_FILES)
    target.dnd_bind("<<Drop>>", dropped)
    return True


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
