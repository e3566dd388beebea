"""What the pages and bars register with the models and with Tk, so that they can be built anew in the open window."""

from __future__ import annotations

import re
import tkinter as tk

from ui.forms.model import FormModel
from ui.loop.pump import Pump
from ui.loop.signal import forget_listeners_since, new_key

_COMMAND = re.compile(r"\[(\d+\w+) ")  # of a Python function in a Tk script


class ViewScope:
    """Make it before the views are built. `close()` takes back everything that they registered since."""

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
            kept = before.get(sequence, "")
            if script == kept:
                continue
            self._root.tk.call("bind", tag, sequence, kept)
            for name in set(_COMMAND.findall(script)) - set(_COMMAND.findall(kept)):
                self._root.deletecommand(name)  # else it would keep the view alive


def _scripts(root: tk.Tk, tag: str) -> dict[str, str]:
    """Return the scripts of a binding tag by their sequences."""
    sequences = root.tk.splitlist(root.tk.call("bind", tag))
    return {str(sequence): str(root.tk.call("bind", tag, sequence)) for sequence in sequences}
