"""The size and the place of the main window."""

from __future__ import annotations

import tkinter as tk

from ui.widgets.theme import Theme

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
