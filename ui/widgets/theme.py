"""The look of the window as tokens: colours for dark and light, fonts, distances. Widgets use tokens, never colours.

Neutral greys with amber, the colour of a darkroom's safelight, as the only accent. A scale for HiDPI screens
converts design pixels to screen pixels.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Literal

from ui.widgets.main_button import MainButtons

Mode = Literal["dark", "light"]
Font = tuple[str, int, str]

# token: (light, dark), the order customtkinter takes
COLOURS: Mapping[str, tuple[str, str]] = {
    "window": ("#e9e9ed", "#1b1b1d"),
    "sidebar": ("#dcdce1", "#151517"),
    "bar": ("#dcdce1", "#151517"),
    "card": ("#ffffff", "#242427"),
    "field": ("#f3f3f6", "#303034"),
    "field_hover": ("#e3e3e8", "#3a3a3f"),
    "field_border": ("#d0d0d7", "#3d3d43"),
    "menu": ("#f3f3f6", "#2a2a2d"),  # Tk shades the arrows of submenus: on a lighter one in dark they lose two sides
    "line": ("#c9c9d0", "#333338"),
    "text": ("#1f1f22", "#e6e6e9"),
    "label": ("#3c3c42", "#c3c3ca"),
    "muted": ("#66666f", "#9a9aa3"),
    "faint": ("#8d8d97", "#6d6d76"),
    "accent": ("#b1610f", "#df8f3f"),
    "accent_hover": ("#97510a", "#eda157"),
    "on_accent": ("#ffffff", "#1d1206"),
    "track": ("#c4c4cc", "#3f3f46"),
    "knob": ("#74747e", "#e6e6e9"),
    "switch": ("#a6a6b0", "#55555e"),
    "switch_knob": ("#ffffff", "#f4f4f6"),
    "knob_hover": ("#5a5a63", "#ffffff"),
    "error": ("#c3332c", "#f0716a"),
    "warning": ("#8a6500", "#e3c04f"),
    "good": ("#2d7a3d", "#79bd82"),
    "info": ("#3a6ea5", "#7fabdb"),
    "selection": ("#f0dcc6", "#4a3826"),
    "tip": ("#2a2a2e", "#3a3a40"),
    "on_tip": ("#f3f3f5", "#f0f0f2"),
    "chart_raw": ("#e0c09b", "#5f4a35"),
    "chart_smooth": ("#b1610f", "#df8f3f"),
    "chart_validation": ("#3a6ea5", "#7fabdb"),
    "chart_a": ("#7a4fb5", "#b08be0"),
    "chart_b": ("#1d8a7f", "#5cc4b8"),
    "chart_c": ("#a33a6b", "#de82ae"),
    "chart_d": ("#6c7a12", "#b9c65a"),
    "chart_grid": ("#e6e6ea", "#2f2f33"),
}

# role: (design pixels, is strong)
FONTS: Mapping[str, tuple[int, bool]] = {
    "caption": (11, False),
    "small": (12, False),
    "body": (13, False),
    "strong": (13, True),
    "heading": (15, True),
    "figure": (15, False),
    "title": (22, True),
}

# (family, weight) of normal and strong text
_FAMILIES: Mapping[str, tuple[tuple[str, str], tuple[str, str]]] = {
    "win32": (("Segoe UI", "normal"), ("Segoe UI", "bold")),
    "darwin": (("Helvetica Neue", "normal"), ("Helvetica Neue", "bold")),
}
# customtkinter installs Roboto for the user; Tk uses its medium weight for normal text. A bold weight that is not
# installed would be smeared, so strong text differs by size and colour.
_LINUX_FAMILIES = (("Roboto", "normal"), ("Roboto", "normal"))

GAP = 8
PAD = 16
CONTROL_HEIGHT = 30
RADIUS = 8
_LOW_PX = 680  # a window below this height has compact bars, so that the page keeps most of it


class Theme:
    """The tokens at this window's mode and scale."""

    def __init__(self, mode: Mode = "dark", *, scale: float = 1.0) -> None:
        self.mode: Mode = mode
        self.scale = scale
        self.main_buttons = MainButtons()
        self._families = _FAMILIES.get(sys.platform, _LINUX_FAMILIES)

    def colour(self, token: str) -> str:
        """Return the colour of a token in the current mode."""
        return COLOURS[token][self.mode == "dark"]

    def pair(self, token: str) -> tuple[str, str]:
        """Return the light and the dark colour of a token, for widgets that switch by themselves."""
        return COLOURS[token]

    def px(self, design_px: float) -> int:
        """Return design pixels as screen pixels."""
        return round(design_px * self.scale)

    def font(self, role: str) -> Font:
        """Return a font for a plain Tk widget, in screen pixels (which Tk writes as a negative size)."""
        family, size_px, weight = self.unscaled_font(role)
        return (family, -self.px(size_px), weight)

    def unscaled_font(self, role: str) -> Font:
        """Return a font for a widget that does its own scaling."""
        size_px, is_strong = FONTS[role]
        family, weight = self._families[is_strong]
        return (family, size_px, weight)


def is_low(height_px: int, theme: Theme) -> bool:
    """Return whether a window of this height needs compact bars; one that is not shown yet (1 pixel) does not."""
    return 1 < height_px < theme.px(_LOW_PX)
