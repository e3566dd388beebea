"""A message with one action, such as what a load replaced, with Undo. No Tk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ui.forms.model import FormModel
from ui.signal import Signal


@dataclass(frozen=True, slots=True)
class Notice:
    """A sentence, and the label of a button with what it does; without a label there is no button."""

    text: str
    label: str = ""
    act: Callable[[], object] = lambda: None


class Notices:
    """The current message. It is about the config as it is now, so it disappears with the next edit."""

    def __init__(self, form: FormModel) -> None:
        self.now: Notice | None = None
        self.changed: Signal[[]] = Signal()
        self._form = form
        self._document = form.document
        form.changed.subscribe(self._edited)

    def show(self, notice: Notice) -> None:
        """Show a message in place of the last one."""
        self.now, self._document = notice, self._form.document
        self.changed()

    def dismiss(self) -> None:
        """Remove the message."""
        if self.now is not None:
            self.now = None
            self.changed()

    def act(self) -> None:
        """Do what the message offers; it then disappears."""
        notice = self.now
        self.dismiss()
        if notice is not None:
            notice.act()

    def _edited(self) -> None:
        if self._form.document is not self._document:
            self.dismiss()
