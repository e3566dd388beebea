"""The queue in words: its state, and how its items differ. No Tk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from modules.system.problem import count
from trainer.run_queue.items import Item
from ui.changes import changes
from ui.run.queue_control import QueueControl

_MAX_NAMED = 3


def status_line(control: QueueControl) -> str:
    """Return who runs the queue and what is left, as a sentence."""
    num_open = sum(item.is_open for item in control.queue.items)
    left = f"{count(num_open, 'run')} left" if num_open else "nothing left"
    if control.problem:
        return control.problem
    if control.current is not None:
        after = ", then the queue stops" if control.is_last else f", {left}" if num_open else ", the last one"
        return f"Training {control.current.name}{after}."
    if control.is_running:
        return f"The queue starts when the current run has ended: {left}."
    if control.runner is not None:
        return f"Process {control.runner.pid} runs the queue: {left}."
    return f"{left[0].upper()}{left[1:]}." if control.queue.items else ""


class ItemWords:
    """Distinguishes items of one name. Configs are compared once: a table is drawn several times a second."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Mapping[str, Any], Mapping[str, Any], str]] = {}

    def of(self, item: Item, items: Sequence[Item]) -> tuple[str, str]:
        """Return the name of an item, and how it differs from the first of that name; empty for the first."""
        same = [other for other in items if other.name == item.name]
        if same[0].number == item.number:
            return item.name, ""
        name = f"{item.name} ({[other.number for other in same].index(item.number) + 1})"
        return name, f"as {items.index(same[0]) + 1}, {self._difference(item, same[0])}"

    def _difference(self, item: Item, first: Item) -> str:
        known = self._known.get(item.number)
        if known is None or known[:2] != (item.settings, first.settings):
            known = (item.settings, first.settings, _difference_words(item, first))
            self._known[item.number] = known
        return known[2]


def _difference_words(item: Item, first: Item) -> str:
    found = changes(item.config, first.config)
    if not found:
        return "unchanged"
    named = [f"{change.place.rpartition('›')[2].strip()} {change.now}" for change in found[:_MAX_NAMED]]
    more = f" and {len(found) - _MAX_NAMED:,} more" if len(found) > _MAX_NAMED else ""
    return f"with {', '.join(named)}{more}"
