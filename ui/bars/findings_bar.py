"""The list of what was found about the config: each entry leads to its field; the list can be sent away."""

from __future__ import annotations

import tkinter as tk
from collections import Counter

from ui.context import Context
from ui.findings import Finding
from ui.theme import PAD
from ui.widgets.controls import Button
from ui.widgets.panel import Panel, Text, rule

_MAX_LINES = 7
_SIGNS = {"error": "✖", "warning": "▲", "info": "•"}
_WORDS = {"error": "error", "warning": "warning", "info": "note"}


class FindingsBar(Panel):
    """Appears above the bottom bar when there is something to say."""

    def __init__(self, master: tk.Misc, context: Context) -> None:
        super().__init__(master, context.theme, "card")
        self._context = context
        px = context.theme.px
        rule(self, context.theme).pack(fill="x")
        header = Panel(self, context.theme, "card")
        header.pack(fill="x", padx=px(PAD + 4), pady=(px(8), px(2)))
        self.title = Text(header, context.theme, role="strong", on="card")
        self.title.pack(side="left")
        self.counts = Text(header, context.theme, role="small", colour="muted", on="card")
        self.counts.pack(side="left", padx=px(10))
        self.close_button = Button(header, context.theme, "Dismiss", context.findings.dismiss, on="card", height=24)
        self.close_button.pack(side="right")
        self.list = tk.Text(
            self,
            wrap="word",
            borderwidth=0,
            highlightthickness=0,
            font=context.theme.font("body"),
            cursor="arrow",
            state="disabled",
            takefocus=True,
            spacing1=px(3),
            spacing3=px(3),
            height=1,
        )
        self.list.pack(fill="both", expand=True, padx=(px(PAD + 4), px(8)), pady=(0, px(8)))
        self.apply_theme()
        context.findings.changed.subscribe(self.refresh)

    def apply_theme(self) -> None:
        """Take the colours of the theme's present mode."""
        super().apply_theme()
        if not hasattr(self, "list"):
            return
        colour, font = self._context.theme.colour, self._context.theme.font
        indent = self._context.theme.px(22)
        self.list.configure(background=colour("card"), foreground=colour("text"))
        for severity, token in (("error", "error"), ("warning", "warning"), ("info", "muted")):
            self.list.tag_configure(severity, foreground=colour(token), lmargin2=indent)
        self.list.tag_configure("place", font=font("strong"), foreground=colour("text"), lmargin2=indent)
        self.list.tag_configure("message", foreground=colour("text"), lmargin2=indent)
        self.list.tag_configure("advice", foreground=colour("muted"), lmargin2=indent)
        self.list.tag_configure("hover", background=colour("field_hover"))

    def refresh(self) -> None:
        """Show the list as it is now."""
        findings = self._context.findings
        if not findings.items:
            self.grid_remove()
            return
        self.title.say(findings.title)
        self.counts.say(_counted(findings.items))
        self.list.configure(state="normal")
        self.list.delete("1.0", "end")
        for index, finding in enumerate(findings.items):
            self._add(index, finding)
        self.list.configure(state="disabled", height=min(_MAX_LINES, len(findings.items) + 1))
        self.list.yview_moveto(0)
        self.grid()

    def _add(self, index: int, finding: Finding) -> None:
        row, problem = f"row{index}", finding.problem
        end = "\n" if index < len(self._context.findings.items) - 1 else ""
        for text, tag in (
            (f"{_SIGNS[problem.severity]}   ", problem.severity),
            (f"{finding.place}   " if finding.place else "", "place" if finding.page else "advice"),
            (problem.message, "message"),
            (f" {problem.advice}" if problem.advice else "", "advice"),
            (end, "message"),
        ):
            self.list.insert("end", text, (tag, row))
        if finding.page:
            path = problem.path
            self.list.tag_bind(row, "<Button-1>", lambda _e: self._context.navigation.go_to(path))
            self.list.tag_bind(row, "<Enter>", lambda _e: self._hover(row))
            self.list.tag_bind(row, "<Leave>", lambda _e: self._hover(""))

    def _hover(self, row: str) -> None:
        self.list.tag_remove("hover", "1.0", "end")
        self.list.configure(cursor="hand2" if row else "arrow")
        ranges = self.list.tag_ranges(row) if row else ()
        if ranges:
            self.list.tag_add("hover", str(ranges[0]), str(ranges[-1]))


def _counted(items: tuple[Finding, ...]) -> str:
    counts = Counter(f.problem.severity for f in items)
    words = [f"{n} {_WORDS[s]}{'' if n == 1 else 's'}" for s in ("error", "warning", "info") if (n := counts[s])]
    return ", ".join(words)
