"""One orange button on a screen: of the primary buttons of a window that can be seen, the most important one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from ui.widgets.controls import Button

Rank = Literal[0, 1, 2]
"""How important a primary button is: Start, which every page has, 0; one of a page or a dialog 1; the first steps 2."""


class MainButtons:
    """The primary buttons of a program. Those of a window that are less important than another one are drawn plain."""

    def __init__(self) -> None:
        self._buttons: list[Button] = []
        self._tag = f"main-button-{id(self)}"  # of the widgets on which it depends what can be seen
        self._is_bound = False

    def add(self, button: Button) -> None:
        """Follow a button and all that it is in: if something of it appears or disappears, choose again."""
        if button in self._buttons:
            return
        self._buttons.append(button)
        window, inside = button.winfo_toplevel(), button
        while inside is not None and inside is not window:
            if self._tag not in (tags := inside.bindtags()):
                inside.bindtags((*tags, self._tag))
            inside = inside.master
        if not self._is_bound:
            self._is_bound = True
            for event in ("<Map>", "<Unmap>", "<Destroy>"):
                button.bind_class(self._tag, event, lambda _event: self.choose())

    def choose(self) -> None:
        """Draw the most important button of each window as its main one."""
        self._buttons = [button for button in self._buttons if button.winfo_exists()]
        shown = [b for b in self._buttons if b.style == "primary" and b.winfo_viewable()]
        best: dict[str, Rank] = {}
        for button in shown:
            window = str(button.winfo_toplevel())
            best[window] = max(best.get(window, 0), button.rank)
        for button in shown:
            button.show_as_main(is_main=button.rank == best[str(button.winfo_toplevel())])
