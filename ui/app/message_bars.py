"""The bars with messages below the page: notices, and findings."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable
from functools import partial
from typing import Any

from modules.system.problem import Severity, shorten
from modules.system.remedies import REMEDIES
from ui.forms.context import Context
from ui.forms.findings import SEVERITIES, Finding, count_of_severity
from ui.loop.interaction import ACTIONS_OF_REMEDIES
from ui.widgets.auto_bar import AutoBar
from ui.widgets.controls import Button
from ui.widgets.fitted_text import FittedText
from ui.widgets.notices import Notice
from ui.widgets.panel import Panel, Text, rule
from ui.widgets.theme import GAP, PAD, is_low

_LOW_SHARE, _SHORT_SHARE, _TALL_SHARE = 0.12, 0.18, 0.5  # of the window's height: the page keeps most of it
_HEADER_HEIGHT = 24
_REMEDY_HEIGHT = 20  # little more than a line of the list
_MAX_TITLE_CHARS = 64
_INDENT = 22  # of the text behind the sign
_SIGNS = {"error": "✖", "warning": "▲", "info": "•"}
_TOKENS = {"error": "error", "warning": "warning", "info": "muted"}


class FindingsBar(Panel):
    """Appears above the bottom bar when there are findings, and is built for the first ones."""

    _is_built = False

    def __init__(self, master: tk.Misc, context: Context) -> None:
        super().__init__(master, context.theme, "card")
        self.is_tall = False
        self._context = context
        self._current = -1  # the entry opened last
        self.remedy_buttons: dict[str, Button] = {}
        """The first button of each remedy in the list."""
        context.findings.changed.subscribe(self.refresh)

    def apply_theme(self) -> None:
        """Apply the colours of the current mode."""
        super().apply_theme()
        if self._is_built:
            self._colour_list()

    def _colour_list(self) -> None:
        colour, font = self._context.theme.colour, self._context.theme.font
        indent = self._context.theme.px(_INDENT)
        self.list.configure(background=colour("card"), foreground=colour("text"))
        for severity, token in _TOKENS.items():
            self.list.tag_configure(severity, foreground=colour(token), lmargin2=indent)
        self.list.tag_configure("place", font=font("strong"), foreground=colour("text"), lmargin2=indent)
        self.list.tag_configure("message", foreground=colour("text"), lmargin2=indent)
        self.list.tag_configure("advice", foreground=colour("muted"), lmargin2=indent)
        self.list.tag_configure("current", background=colour("selection"))
        self.list.tag_configure("hover", background=colour("field_hover"))

    def refresh(self) -> None:
        """Update the list."""
        findings = self._context.findings
        self._current = -1
        self.remedy_buttons.clear()
        if not findings.items:
            self.is_tall = False
            self.grid_remove()
            return
        if not self._is_built:
            self._build()
        for button in self.list.winfo_children():
            button.destroy()
        self.title.set_text(shorten(findings.title, max_chars=_MAX_TITLE_CHARS))
        self._show_kinds()
        self.list.configure(state="normal")
        self.list.delete("1.0", "end")
        for index, finding in enumerate(findings.visible):
            self._add(index, finding)
        self.list.configure(state="disabled")
        self.list.yview_moveto(0)
        self.grid()
        self._fit_soon()

    def go(self, index: int) -> None:
        """Open the field of an entry and mark the entry, so that the user keeps the place in the list."""
        finding = self._context.findings.visible[index]
        self._mark_current(index)
        if finding.page:
            self._context.navigation.go_to(finding.problem.path)

    def copy_all(self) -> None:
        """Copy all entries to the clipboard, including hidden kinds."""
        self.clipboard_clear()
        self.clipboard_append(self._context.findings.text)
        self._context.notify(f"Copied {len(self._context.findings.items):,} entries.")

    def toggle_height(self) -> None:
        """Give a long list half of the window, or make it short again."""
        self.is_tall = not self.is_tall
        self._fit()

    def _build(self) -> None:
        self._is_built = True
        rule(self, self._context.theme).pack(fill="x")
        self._add_header()
        self._add_list()
        self._colour_list()

    def _add_header(self) -> None:
        context, px = self._context, self._context.theme.px
        header = Panel(self, context.theme, "card")
        header.pack(fill="x", padx=px(PAD + 4), pady=(px(8), px(4)))
        self.title = Text(header, context.theme, role="strong", on="card")
        self.title.pack(side="left")
        self.kinds: dict[Severity, Button] = {}
        box = Panel(header, context.theme, "card")
        box.pack(side="left", padx=(px(12), 0))
        for severity in SEVERITIES:
            self.kinds[severity] = self._small_button(box, "", partial(context.findings.toggle, severity))
            tip = f"Shows or hides the {count_of_severity(severity, 2)[2:]}."
            context.tips.attach(self.kinds[severity], lambda tip=tip: tip)  # type: ignore[misc]
        self.close_button = self._small_button(header, "Dismiss", context.findings.dismiss)
        self.copy_button = self._small_button(header, "Copy all", self.copy_all)
        self.height_button = self._small_button(header, "Taller", self.toggle_height)
        self.close_button.pack(side="right")
        self.copy_button.pack(side="right", padx=(0, 6))

    def _small_button(
        self, master: tk.Misc, text: str, command: Callable[[], object], *, height: int = _HEADER_HEIGHT
    ) -> Button:
        return Button(master, self._context.theme, text, command, on="card", height=height)

    def _add_list(self) -> None:
        theme, px = self._context.theme, self._context.theme.px
        box = Panel(self, theme, "card")
        box.pack(fill="both", expand=True, padx=(px(PAD + 4), px(6)), pady=(0, px(8)))
        self.list = tk.Text(
            box,
            wrap="word",
            borderwidth=0,
            highlightthickness=0,
            font=theme.font("body"),
            cursor="arrow",
            state="disabled",
            takefocus=True,
            pady=0,
            spacing1=px(3),
            spacing3=px(3),
            tabs=px(_INDENT),
            width=1,
            height=1,
        )
        self.scroll_bar = AutoBar(box, theme, self.list.yview, on="card")
        self.list.configure(yscrollcommand=self.scroll_bar.set)
        self.scroll_bar.pack(side="right", fill="y")
        self.list.pack(side="left", fill="both", expand=True)
        self.list.bind("<Configure>", lambda _e: self._fit_soon())
        self.list.bind("<Button-1>", lambda _e: "break")  # else the list would take the focus from the opened field
        for key, by in (("<Down>", 1), ("<Up>", -1)):
            self.list.bind(key, lambda _e, by=by: self._step(by))  # type: ignore[misc]
        self.list.bind("<Return>", lambda _e: self._open_current())

    def _show_kinds(self) -> None:
        """Show the number of entries of each kind; a click hides or shows them."""
        findings = self._context.findings
        for severity, button in self.kinds.items():
            button.pack_forget()
            number = findings.counts.get(severity, 0)
            if number:
                is_hidden = severity in findings.hidden
                button.configure(
                    text=f"{_SIGNS[severity]}  {count_of_severity(severity, number)}",
                    text_color=self._context.theme.pair("faint" if is_hidden else _TOKENS[severity]),
                    fg_color=self._context.theme.pair("card" if is_hidden else "field"),
                )
                button.pack(side="left", padx=(0, 6))

    def _add(self, index: int, finding: Finding) -> None:
        row, problem = _row_tag(index), finding.problem
        for text, tag in (
            (f"{_SIGNS[problem.severity]}\t", problem.severity),
            (f"{finding.place}   " if finding.place else "", "place" if finding.page else "advice"),
            (problem.message, "message"),
            (f" {problem.advice}" if problem.advice else "", "advice"),
        ):
            self.list.insert("end", text, (tag, row))
        self._add_remedy(problem.remedy, row)
        if index < len(self._context.findings.visible) - 1:
            self.list.insert("end", "\n", ("message", row))
        if finding.page:
            self.list.tag_bind(row, "<Button-1>", lambda _e: self.go(index))
            self.list.tag_bind(row, "<Enter>", lambda _e: self._hover(row))
            self.list.tag_bind(row, "<Leave>", lambda _e: self._hover(""))

    def _add_remedy(self, remedy: str, row: str) -> None:
        """Add the button that fixes a finding behind its text, if there is one."""
        action = ACTIONS_OF_REMEDIES.get(remedy)
        if action is None:
            return
        command, label = partial(self._context.actions.run, action), REMEDIES[remedy].label
        button = self._small_button(self.list, label, command, height=_REMEDY_HEIGHT)
        self.remedy_buttons.setdefault(remedy, button)
        self.list.insert("end", "  ", ("message", row))
        self.list.window_create("end", window=button, pady=1)
        self.list.tag_add(row, "end-2c")

    def _hover(self, row: str) -> None:
        self.list.configure(cursor="hand2" if row else "arrow")
        self._colour_row("hover", row)

    def _mark_current(self, index: int) -> None:
        self._current = index
        self._colour_row("current", _row_tag(index))
        self.list.see(f"{index + 1}.0")

    def _colour_row(self, tag: str, row: str) -> None:
        self.list.tag_remove(tag, "1.0", "end")
        ranges = self.list.tag_ranges(row) if row else ()
        if ranges:
            line = int(str(ranges[0]).partition(".")[0])
            self.list.tag_add(tag, f"{line}.0", f"{line + 1}.0")  # with its end, up to the edge

    def _step(self, by: int) -> str:
        last = len(self._context.findings.visible) - 1
        if last >= 0:
            self._mark_current(min(last, max(0, self._current + by)))
        return "break"

    def _open_current(self) -> str:
        if 0 <= self._current < len(self._context.findings.visible):
            self.go(self._current)
        return "break"

    def _fit_soon(self) -> None:
        self._context.pump.redraw_soon(self, self._fit)

    def _fit(self) -> None:
        """Use the height the list needs, up to a limit; beyond it the list scrolls and can be made taller."""
        if self.list.winfo_width() <= 1 or not self._context.findings.items:
            return
        needed_px = int(self.list.tk.call(self.list, "count", "-update", "-ypixels", "1.0", "end"))
        window_px = self.winfo_toplevel().winfo_height()
        short = _LOW_SHARE if is_low(window_px, self._context.theme) else _SHORT_SHARE
        short_px, tall_px = int(window_px * short), int(window_px * _TALL_SHARE)
        line_px = self.list.winfo_reqheight() // int(str(self.list.cget("height")))
        lines = max(1, -(-min(needed_px, tall_px if self.is_tall else short_px) // line_px))
        if int(str(self.list.cget("height"))) != lines:
            self.list.configure(height=lines)
        self.height_button.configure(text="Shorter" if self.is_tall else "Taller")
        if needed_px > short_px:
            self.height_button.pack(side="right", padx=(0, 6))
        else:
            self.height_button.pack_forget()


def _row_tag(index: int) -> str:
    return f"row{index}"


_MAX_SHOWN, _MAX_SHOWN_LOW = 3, 1
_STRIPE = 3
_BUTTON_HEIGHT = 24


class NoticeBar(Panel):
    """Takes no space without notices. In a low window it shows the newest one, in a line, and how many more there are.

    The page keeps the height: nothing of a notice is lost, its tooltip has the whole text.
    """

    def __init__(self, master: tk.Misc, context: Context) -> None:
        super().__init__(master, context.theme)
        self.lines: list[NoticeLine] = []
        self._context = context
        self._shows_all = False
        context.notices.changed.subscribe(lambda: context.pump.redraw_soon(self, self.refresh))
        self.refresh()

    def refresh(self) -> None:
        """Show the current notices; those that are shown already stay."""
        items = self._context.notices.items
        low = is_low(self._context.root.winfo_height(), self.theme)
        self._shows_all = self._shows_all and len(items) > 1
        visible = items[: _MAX_SHOWN_LOW if low and not self._shows_all else _MAX_SHOWN]
        for line in self.lines:
            if line.notice not in visible:
                line.destroy()
        old_lines = {line.notice.key: line for line in self.lines if line.notice in visible}
        self.lines = [old_lines.get(notice.key) or NoticeLine(self, self._context, notice) for notice in visible]
        for line in self.lines:
            line.pack_forget()
            line.pack(fill="x", padx=self.theme.px(PAD + 4), pady=(self.theme.px(4), self.theme.px(4 if low else GAP)))
            line.text.set_one_line(low)
        if self.lines:
            self.lines[0].offer_more(len(items) - len(visible) if low else 0, self.show_all)
            self.grid()
        else:
            self.grid_remove()

    def show_all(self) -> None:
        """Show the notices for which a low window has no room, until one is left."""
        self._shows_all = True
        self.refresh()


class NoticeLine(Panel):
    """A notice: a stripe, the sentence, and its buttons."""

    def __init__(self, master: tk.Misc, context: Context, notice: Notice) -> None:
        super().__init__(master, context.theme, "card")
        self.notice = notice
        self.buttons: dict[str, Button] = {}
        px = context.theme.px
        Panel(self, context.theme, "accent", width=px(_STRIPE)).pack(side="left", fill="y")
        self._box = box = Panel(self, context.theme, "card")
        box.pack(side="right", padx=px(GAP), pady=px(4))
        for reply in notice.replies:
            self._add_button(reply.label, partial(context.notices.reply, notice, reply), style="plain")
        self._add_button(notice.dismiss_label, partial(context.notices.dismiss, notice), style="ghost")
        self._more: Button | None = None
        self.text = FittedText(self, context.theme, notice.text, on="card")
        self.text.pack(side="left", fill="x", expand=True, padx=(px(12), 0), pady=px(4))
        context.tips.attach(self.text, lambda: self.text.hidden_text)

    def offer_more(self, number: int, show: Callable[[], object]) -> None:
        """Offer to show further notices; none removes the button."""
        if self._more is not None:
            self._more.destroy()
            self._more = None
        if number:
            self._more = self._add_button(f"{number} more", show, style="ghost")

    def _add_button(self, label: str, command: Callable[[], object], *, style: Any) -> Button:
        button = Button(
            self._box, self.theme, label, command, style=style, on="card", height=_BUTTON_HEIGHT
        )  # next to the text, it sets the height of the line
        button.pack(side="left", padx=(GAP, 0))
        self.buttons[label] = button
        return button
