"""What was found about a config (at loading, before a start), as a list whose entries lead to their fields. No Tk."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from modules.config.edit import get_path
from modules.config.problem import Problem
from modules.config.schema import Config
from ui.forms.records import record_at
from ui.pages.catalogue import page_of
from ui.signal import Signal

_ORDER = {"error": 0, "warning": 1, "info": 2}


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem, and the place in the window that it is about; without a page there is nowhere to go."""

    problem: Problem
    place: str
    page: str


class Findings:
    """The list that is shown now, under its title; empty when there is nothing to say."""

    def __init__(self) -> None:
        self.title = ""
        self.items: tuple[Finding, ...] = ()
        self.changed: Signal[[]] = Signal()

    def show(self, title: str, problems: Iterable[Problem], config: Config) -> None:
        """Show problems, the gravest first; no problems means nothing to show."""
        found = [locate(p, config) for p in problems]
        self.items = tuple(sorted(found, key=lambda f: _ORDER[f.problem.severity]))
        self.title = title if found else ""
        self.changed()

    def dismiss(self) -> None:
        """Take the list away."""
        self.items, self.title = (), ""
        self.changed()


def locate(problem: Problem, config: Config) -> Finding:
    """Return a problem with its place in words: the page and the field's label."""
    page = page_of(type(config), problem.path)
    if page is None:
        return Finding(problem, problem.path, "")
    label = label_of(problem.path, config)
    return Finding(problem, f"{page.title} › {label}" if label else page.title, page.key)


def label_of(path: str, config: Config) -> str:
    """Return what the window calls the field at a path; for one in a list or a part, with the entry's name."""
    record = record_at(config, path)
    if record is None:
        return ""
    entry = entry_name(path, config)
    return f"{entry}: {record.label}" if entry else record.label


def entry_name(path: str, config: Config) -> str:
    """Return the name of the list's entry that a path leads into, else nothing."""
    names = path.split(".")
    for index, name in enumerate(names):
        if name.isdigit():
            item = _value(config, ".".join(names[: index + 1]))
            return str(getattr(item, "name", "")) or f"number {int(name) + 1}"
    return ""


def _value(config: Config, path: str) -> object:
    try:
        found: object = get_path(config, path)
    except KeyError:
        return None
    return found
