"""The views of the window: in the chosen colours, and built anew at another scale."""

from __future__ import annotations

import re
import tkinter as tk
from collections.abc import Callable, Sequence
from pathlib import Path

from ui.app.shell import Shell
from ui.forms.context import Context
from ui.forms.model import FormModel
from ui.loop.pump import Pump
from ui.loop.signal import forget_listeners_since, new_key
from ui.widgets.dialog import Dialog, Window
from ui.widgets.notices import Notice, Reply
from ui.widgets.window import accept_paths, grow_to_scale, set_scale, style_ttk, switch_mode

_SCALE_NOTICE = "scale"  # the key of the notice about a scale that has not been applied yet


class Views:
    """Keeps the shell; `save` is called before it is built anew, `open_dropped` with what is dropped on it."""

    def __init__(
        self, context: Context, *, save: Callable[[], None], open_dropped: Callable[[Sequence[Path]], None]
    ) -> None:
        self._context = context
        self._save = save
        self._open_dropped = open_dropped
        self._scale_percent = context.preferences.now.scale_percent
        context.root.title("Darkroom")
        context.preferences.changed.subscribe(self._follow_preferences)
        self._scope = _ViewScope(context.root, context.form, context.pump)
        self.shell = self._build()

    def accept_drops(self) -> None:
        """Accept files and folders that are dropped on the window."""
        accept_paths(self._context.root, self.shell, self._open_dropped)

    def rescale(self) -> None:
        """Build the bars and the open page anew at the chosen scale; settings, edits and a run stay as they are."""
        context, scale_percent = self._context, self._context.preferences.now.scale_percent
        if scale_percent == self._scale_percent:
            context.notices.remove(_SCALE_NOTICE)
            return
        if reason := self._why_not_rescale():
            reply = Reply("Change it now", self.rescale, stays=True)
            context.notices.show(Notice(_SCALE_NOTICE, f"The scale has not changed yet: {reason}.", (reply,)))
            return
        context.notices.remove(_SCALE_NOTICE)
        self._scale_percent = scale_percent
        self._save()
        self.shell.leave()
        self.shell.destroy()
        self._scope.close()
        context.tips.renew()
        set_scale(context.root, context.theme, scale_percent)
        grow_to_scale(context.root, context.theme)
        self.shell = self._build()
        self.accept_drops()
        context.navigation.open(context.navigation.page)
        context.field_problems.check()
        context.buttons.refresh()  # and forget the old ones

    def _build(self) -> Shell:
        style_ttk(self._context.root, self._context.theme)
        shell = Shell(self._context)
        shell.pack(fill="both", expand=True)
        return shell

    def _follow_preferences(self) -> None:
        context, now = self._context, self._context.preferences.now
        if now.appearance != context.theme.mode:
            context.pump.work_through("appearance", switch_mode(context.root, context.theme, now.appearance))
        if now.scale_percent != self._scale_percent:
            context.pump.redraw_soon(self, self.rescale)  # not within the menu that chose it

    def _why_not_rescale(self) -> str:
        """Close the windows of editors, which save; return what would be lost, or an empty text."""
        from ui.loop.jobs import has_job  # the window starts without the child processes of jobs

        if any(has_job(source) for source in self._context.pump.sources):
            return "a job of the Generate or the Tools page, or an export, is running"
        windows = [w for w in self._context.root.winfo_children() if isinstance(w, Window)]
        if any(isinstance(w, Dialog) for w in windows):
            return "a question is open"
        for window in windows:
            window.close()
        open_title = next((w.title() for w in windows if w.winfo_exists()), "")
        return f"the window {open_title} is open" if open_title else ""


_COMMAND = re.compile(r"\[(\d+\w+) ")  # of a Python function in a Tk script


class _ViewScope:
    """Create it before the views are built; `close` removes everything that they registered."""

    def __init__(self, root: tk.Tk, form: FormModel, pump: Pump) -> None:
        self._root, self._form, self._pump = root, form, pump
        self._key = new_key()
        self._sources = pump.sources
        self._bindings = {tag: _scripts(root, tag) for tag in self._tags}

    @property
    def _tags(self) -> tuple[str, str]:
        return "all", str(self._root)

    def close(self) -> None:
        """Remove listeners, watchers, sources, redraws, jobs, and bindings of the whole window."""
        forget_listeners_since(self._key)
        self._form.forget_watchers_since(self._key)
        self._pump.forget_views(self._sources)
        for tag in self._tags:
            self._restore_bindings(tag)

    def _restore_bindings(self, tag: str) -> None:
        before = self._bindings[tag]
        for sequence, script in _scripts(self._root, tag).items():
            old_script = before.get(sequence, "")
            if script == old_script:
                continue
            self._root.tk.call("bind", tag, sequence, old_script)
            for name in set(_COMMAND.findall(script)) - set(_COMMAND.findall(old_script)):
                self._root.deletecommand(name)  # else it would keep the view alive


def _scripts(root: tk.Tk, tag: str) -> dict[str, str]:
    """Return the scripts of a binding tag by their sequences."""
    sequences = root.tk.splitlist(root.tk.call("bind", tag))
    return {str(sequence): str(root.tk.call("bind", tag, sequence)) for sequence in sequences}
