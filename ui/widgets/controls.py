"""Buttons, switches and choices: customtkinter's, with our theme, keyboard access and Tk variables."""

from __future__ import annotations

import tkinter as tk
import tkinter.font as tkfont
from collections.abc import Callable, Mapping
from typing import Any, Literal

from ui.widgets.canvas import rounded_corners
from ui.widgets.ctk import ctk, release_master
from ui.widgets.main_button import Rank
from ui.widgets.menu import EDGE
from ui.widgets.theme import CONTROL_HEIGHT, Theme

ButtonStyle = Literal["primary", "plain", "chosen", "ghost", "danger"]
"""`chosen` marks the chosen one of several buttons."""

_BUTTON_COLOURS: Mapping[str, tuple[str, str, str]] = {
    "primary": ("accent", "accent_hover", "on_accent"),
    "plain": ("field", "field_hover", "text"),
    "chosen": ("selection", "selection", "text"),
    "danger": ("field", "field_hover", "error"),
}


_KNOB_INSET = 4  # design pixels between the knob and the edge of a switch
_KNOB_PARTS = ("slider_oval_1_a", "slider_oval_1_b", "slider_oval_4_a", "slider_oval_4_b")


_RADIUS = 6
_RING = "ring"


class Button(ctk.CTkButton):  # type: ignore[misc]
    """A push button; Space and Return press it too. A primary one is orange unless one of a higher rank is shown.

    For one that `changes`, such as Pause, which becomes Continue, a double click is one click.
    """

    def __init__(
        self,
        master: tk.Misc,
        theme: Theme,
        text: str,
        command: Callable[[], object],
        *,
        style: ButtonStyle = "plain",
        on: str = "window",
        width: int = 0,
        height: int = CONTROL_HEIGHT,
        rank: Rank = 1,
        changes: bool = False,
        **options: Any,
    ) -> None:
        self.style = style
        self._changes = changes
        self.rank: Rank = rank
        self._drawn = style
        self._theme_tokens = theme
        self._is_pressed = self._is_skipped = False
        self._pressable: set[str] = set()
        fill, hover, ink = _BUTTON_COLOURS.get(style, (on, "field_hover", "text"))
        super().__init__(
            master,
            text=text,
            command=command,
            width=width,
            height=height,
            corner_radius=_RADIUS,
            border_width=0,
            border_spacing=2,  # room for the ring of the focus
            bg_color=theme.pair(on),
            fg_color=theme.pair(fill),
            border_color=theme.pair(fill),
            hover_color=theme.pair(hover),
            text_color=theme.pair(ink),
            text_color_disabled=theme.pair("faint"),
            font=theme.unscaled_font("strong" if style == "primary" else "body"),
            **options,
        )
        release_master(master)
        self._border = theme.pair(fill)
        _make_focusable(self, self._canvas, theme, press=self.invoke, show_ring=self._show_ring)
        if style == "primary":
            theme.main_buttons.add(self)

    def focus_set(self) -> None:
        """Focus the part that shows the ring and that Space and Return press; customtkinter would focus the label."""
        self._canvas.focus_set()

    def _draw(self, no_color_updates: bool = False) -> None:
        """Also note presses of a label that customtkinter has created: a click begins and ends here."""
        super()._draw(no_color_updates)
        if self._mouse_inside:  # a new size alone would colour the label as under the pointer, and the rest not
            self._on_enter()
        for part in (self._canvas, self._text_label, self._image_label):
            if part is not None and str(part) not in self._pressable:
                self._pressable.add(str(part))
                tk.Misc.bind(part, "<Button-1>", self._on_press, add=True)
                if self._changes:  # this is bound in place of a second press
                    tk.Misc.bind(part, "<Double-Button-1>", lambda _event: None)

    def _on_press(self, _event: object = None) -> None:
        self._is_pressed = True

    def _on_release(self, _event: object = None) -> None:
        """Press the button, as often as it is clicked.

        customtkinter takes the pointer for outside until 100 ms after a click, or longer if the window is busy, so
        that it loses the second of two quick clicks.
        """
        is_click, self._is_pressed = self._is_pressed and self._mouse_inside, False
        if is_click:
            self.invoke()

    def _show_ring(self, colour: tuple[str, str] | None) -> None:
        if colour is not None and self._drawn == "primary":
            colour = self._theme_tokens.pair("text")  # the button has the ring's usual colour itself
        self.configure(border_color=colour or self._border, border_width=0 if colour is None else 1)

    def restyle(self, style: ButtonStyle) -> None:
        """Change the style, as Start does when it becomes Stop."""
        if style == self.style:
            return
        self.style = style
        self._colour_as(style)
        if style == "primary":
            self._theme_tokens.main_buttons.add(self)
        self._theme_tokens.main_buttons.choose()

    def show_as_main(self, *, is_main: bool) -> None:
        """Draw a primary button orange, or plain while a more important one is shown or it is disabled."""
        self._colour_as("primary" if is_main and self.cget("state") == "normal" else "plain")

    def _colour_as(self, style: ButtonStyle) -> None:
        if style == self._drawn:
            return
        self._drawn = style
        fill, hover, ink = (self._theme_tokens.pair(t) for t in _BUTTON_COLOURS[style])
        self._border = fill
        self.configure(fg_color=fill, hover_color=hover, text_color=ink, border_color=fill)

    def set_enabled(self, is_enabled: bool) -> None:
        """Enable or disable the button."""
        state = "normal" if is_enabled else "disabled"
        if self.cget("state") != state:
            self.configure(state=state)
            self._skip_in_tab_order(not is_enabled)
            if self.style == "primary":  # gray on orange cannot be read
                self._theme_tokens.main_buttons.choose()

    def _skip_in_tab_order(self, skips: bool) -> None:
        """Let Tab pass over the button, or stop at it again; a button that Tab never reaches stays so."""
        if skips != self._is_skipped and (self._is_skipped or self._canvas.cget("takefocus") == "1"):
            self._is_skipped = skips
            self._canvas.configure(takefocus=not skips)


class Switch(ctk.CTkSwitch):  # type: ignore[misc]
    """On or off, bound to a variable; Space and Return toggle it too."""

    def __init__(
        self,
        master: tk.Misc,
        theme: Theme,
        variable: tk.BooleanVar,
        *,
        on: str = "card",
        text: str = "",
        command: Callable[[], object] | None = None,
    ) -> None:
        self._theme_tokens = theme
        super().__init__(
            master,
            text=text,
            variable=variable,
            command=command,
            onvalue=True,
            offvalue=False,
            width=40 if not text else 100,
            height=CONTROL_HEIGHT,
            switch_width=38,
            switch_height=22,
            border_width=1,
            bg_color=theme.pair(on),
            fg_color=theme.pair("switch"),
            progress_color=theme.pair("accent"),
            button_color=theme.pair("switch_knob"),
            button_hover_color=theme.pair("switch_knob"),
            text_color=theme.pair("text"),
            text_color_disabled=theme.pair("faint"),
            font=theme.unscaled_font("body"),
        )
        release_master(master)
        _make_focusable(self, self._canvas, theme, press=self.toggle, show_ring=self._show_ring)

    def focus_ring(self) -> None:
        """Take the keyboard focus."""
        self._canvas.focus_set()

    def _draw(self, no_color_updates: bool = False) -> None:
        """Draw the knob inside the track; customtkinter draws it as high as the track, so that it looks like a dot."""
        super()._draw(no_color_updates)
        height, width = (self._apply_widget_scaling(n) for n in (self._switch_height, self._switch_width))
        middle, radius = height / 2, round(height / 2 - self._apply_widget_scaling(_KNOB_INSET))
        for tag in _KNOB_PARTS:
            if "ctk_aa_circle_font_element" in self._canvas.gettags(tag):
                self._canvas.coords(tag, width - middle if self._check_state else middle, middle, radius)
        self._canvas.coords("slider_rectangle_2", 0, 0, 0, 0)
        # At 0 its round end would still be drawn.
        fill = self._apply_appearance_mode(self._progress_color if self._check_state else self._fg_color)
        self._canvas.itemconfig("progress_parts", fill=fill, outline=fill)

    def _show_ring(self, colour: tuple[str, str] | None) -> None:
        if colour is not None and self._check_state:
            colour = self._theme_tokens.pair("text")  # the track has the ring's usual colour itself
        self.configure(border_color=colour or "transparent")

    def set_enabled(self, is_enabled: bool) -> None:
        """Enable or disable the switch."""
        self.configure(state="normal" if is_enabled else "disabled")


class Choice(ctk.CTkOptionMenu):  # type: ignore[misc]
    """One of several, shown by label; the variable holds the name. Space, Return and Down open the list."""

    def __init__(
        self,
        master: tk.Misc,
        theme: Theme,
        variable: tk.StringVar,
        choices: Mapping[str, str],
        *,
        on: str = "card",
        width: int = 160,
        command: Callable[[str], object] | None = None,
    ) -> None:
        self._name_variable = variable
        self._choices = choices
        self._is_filled = False
        self._chosen = command
        self.open_instead: Callable[[], object] | None = None  # in place of the menu
        self._ring: tuple[str, str] | None = None
        super().__init__(
            master,
            values=[""],  # the menu is filled when it is needed: of most fields it never opens
            command=self._on_label,
            width=width,
            height=CONTROL_HEIGHT,
            corner_radius=_RADIUS,
            bg_color=theme.pair(on),
            fg_color=theme.pair("field"),
            button_color=theme.pair("field"),
            button_hover_color=theme.pair("field_hover"),
            text_color=theme.pair("text"),
            text_color_disabled=theme.pair("faint"),
            dropdown_fg_color=theme.pair("field"),
            dropdown_hover_color=theme.pair("selection"),
            dropdown_text_color=theme.pair("text"),
            font=theme.unscaled_font("body"),
            dropdown_font=theme.unscaled_font("body"),
            dynamic_resizing=False,
        )
        release_master(master)
        self._name_trace = variable.trace_add("write", lambda *_: self._show_name())
        self._show_name()
        _make_focusable(self, self._canvas, theme, press=self._clicked, show_ring=self._show_ring)
        tk.Misc.bind(self._canvas, "<Down>", lambda _e: self._clicked(), add="+")

    @property
    def menu(self) -> tk.Menu:
        """The menu that opens; its entries can be invoked by index."""
        if not self._is_filled:
            self._is_filled = True
            self.configure(values=list(self._choices.values()))
        inner: tk.Menu = self._dropdown_menu
        return inner

    @property
    def choices(self) -> Mapping[str, str]:
        """The names with their labels."""
        return self._choices

    def set_choices(self, choices: Mapping[str, str]) -> None:
        """Set the choices."""
        if choices is not self._choices:
            self._choices, self._is_filled = choices, False
        self._show_name()

    def set_enabled(self, is_enabled: bool) -> None:
        """Enable or disable the control."""
        self.configure(state="normal" if is_enabled else "disabled")

    def destroy(self) -> None:
        """Also unsubscribe from the variable."""
        self._name_variable.trace_remove("write", self._name_trace)
        super().destroy()

    def focus_ring(self) -> None:
        """Take the keyboard focus."""
        self._canvas.focus_set()

    def _open_dropdown_menu(self) -> None:
        """Open the list, as wide as the control."""
        if self.open_instead is not None:
            self.open_instead()
            return
        font = tkfont.Font(self, font=self._text_label.cget("font"))
        space, width = font.measure(" "), self.winfo_width()
        for index, label in enumerate(self._choices.values()):
            padding = " " * max(0, (width - font.measure(label)) // space - 8)
            self.menu.entryconfigure(index, label=f"  {label}{padding}")
        self.menu.configure(**EDGE)  # here, as customtkinter makes it flat with each change of the mode
        super()._open_dropdown_menu()

    def _show_ring(self, colour: tuple[str, str] | None) -> None:
        self._ring = colour
        self._draw()

    def _draw(self, no_color_updates: bool = False) -> None:
        """Also draw the ring of the focus, which customtkinter's menu button does not have.

        customtkinter ends each drawing with `update_idletasks`: it would lay out and draw the whole window for each of
        the controls of a page that is being built.
        """
        self._canvas.update_idletasks = _wait_for_idle
        super()._draw(no_color_updates)
        self._canvas.delete(_RING)
        if self._ring is not None:
            right, bottom = self._canvas.winfo_width() - 1, self._canvas.winfo_height() - 1
            radius, colour = self._apply_widget_scaling(_RADIUS), self._apply_appearance_mode(self._ring)
            corners = rounded_corners(right, bottom, radius)
            self._canvas.create_polygon(corners, smooth=True, fill="", outline=colour, tags=_RING)

    def _on_label(self, label: str) -> None:
        name = next(n for n, text in self._choices.items() if text == label)
        self._name_variable.set(name)
        if self._chosen is not None:
            self._chosen(name)

    def _show_name(self) -> None:
        name = self._name_variable.get()
        self.set(self._choices.get(name, name))


def _wait_for_idle() -> None:
    """Leave what waits to Tk, which does it when it is idle."""


def _make_focusable(
    widget: Any,
    canvas: tk.Canvas,
    theme: Theme,
    *,
    press: Callable[[], object],
    show_ring: Callable[[tuple[str, str] | None], None],
) -> None:
    """Let Tab reach a control that customtkinter made for the mouse only, and show its focus."""
    canvas.configure(takefocus=True)

    def pressed(_event: object) -> str:
        if widget.cget("state") == "normal":
            press()
        return "break"

    for key in ("<Return>", "<space>", "<KP_Enter>"):
        tk.Misc.bind(canvas, key, pressed)
    tk.Misc.bind(canvas, "<FocusIn>", lambda _e: show_ring(theme.pair("accent")), add="+")
    tk.Misc.bind(canvas, "<FocusOut>", lambda _e: show_ring(None), add="+")


class Slider(ctk.CTkSlider):  # type: ignore[misc]
    """Calls back with its number when moved."""

    def __init__(
        self, master: tk.Misc, theme: Theme, last: int, on_move: Callable[[int], object], *, on: str = "window"
    ) -> None:
        super().__init__(
            master,
            from_=0,
            to=last,
            number_of_steps=last,
            command=lambda value: on_move(round(value)),
            bg_color=theme.pair(on),
            fg_color=theme.pair("track"),
            progress_color=theme.pair("accent"),
            button_color=theme.pair("knob"),
            button_hover_color=theme.pair("knob_hover"),
        )
        release_master(master)
        self.set(0)
