"""Findings about a config (when loading, before a start); each entry links to its field."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from modules.config.records import record_at
from modules.config.schema import Config
from modules.data.concept import Concept
from modules.system.problem import Problem, Severity
from ui.forms.records import name_of, value_at
from ui.forms.setting_pages import SETTING_PAGES, TOP_BAR, TOP_BAR_TITLE, page_of
from ui.loop.signal import Signal

SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")
_SEVERITY_NAMES: Mapping[Severity, str] = {"error": "error", "warning": "warning", "info": "note"}
CANNOT_START = "Cannot start yet"  # the title of a list with errors, as long as one is left
_WHILE_EDITING = "The current settings"
_PAGE_ORDER = {page.key: number for number, page in enumerate(SETTING_PAGES)}


class Finding(NamedTuple):
    """A problem and its place in the window; without a page it links to nothing."""

    problem: Problem
    place: str
    page: str

    def __str__(self) -> str:
        kind = _SEVERITY_NAMES[self.problem.severity].capitalize()
        place = f"{self.place}: " if self.place else ""
        return f"{kind}: {place}{self.problem.message} {self.problem.advice}".strip()


class Findings:
    """The list that was shown last, with its title, and below it what the checks find while the user edits.

    A fixed problem leaves the list. Empty without findings.
    """

    def __init__(self) -> None:
        self.hidden: frozenset[Severity] = frozenset()
        self.changed: Signal[[]] = Signal()
        self._title = ""
        self._keeps_notes = False
        self._config = Config()  # with which the report was shown
        self._report: tuple[Finding, ...] = ()
        self._current_findings: tuple[Finding, ...] = ()
        self._is_current_dismissed = False
        self._dismissed_report: tuple[str, tuple[Finding, ...]] = ("", ())

    @property
    def title(self) -> str:
        """The title of the list; empty without entries."""
        is_settled = self._title == CANNOT_START and "error" not in self.counts
        if self._report and not is_settled:
            return self._title
        return _WHILE_EDITING if self.items else ""

    @property
    def items(self) -> tuple[Finding, ...]:
        """All entries, most severe first: of each kind those that were shown, then the current settings' ones."""
        current = () if self._is_current_dismissed else self._current_findings
        reported = {(f.problem.path, f.problem.message) for f in self._report}
        findings = (*self._report, *(f for f in current if (f.problem.path, f.problem.message) not in reported))
        return tuple(sorted(findings, key=lambda f: SEVERITIES.index(f.problem.severity)))

    @property
    def visible(self) -> tuple[Finding, ...]:
        """The entries of the kinds that are not hidden."""
        return tuple(f for f in self.items if f.problem.severity not in self.hidden)

    @property
    def can_come_back(self) -> bool:
        """Whether there is a dismissed list that no newer one has replaced."""
        return bool(self._dismissed_report[1]) or self._is_current_dismissed

    @property
    def counts(self) -> dict[Severity, int]:
        """The number of entries of each kind, most severe first; kinds without entries are left out."""
        counts = Counter(f.problem.severity for f in self.items)
        return {severity: counts[severity] for severity in SEVERITIES if counts[severity]}

    @property
    def text(self) -> str:
        """Title and all entries, for the clipboard."""
        return "\n".join([self.title, *map(str, self.items)])

    def show(self, title: str, problems: Iterable[Problem], config: Config, *, keeps_notes: bool = False) -> None:
        """Show problems, most severe first, then in page order; an empty list clears the findings.

        With `keeps_notes` the notes are about a file that was loaded, and stay true while the settings are edited.
        """
        self._report, self._config = _sort_findings(problems, config), config
        self._keeps_notes = keeps_notes
        self._title = title if self._report else ""
        self.hidden = frozenset()
        self._dismissed_report = ("", ())
        self.changed()

    def show_current(self, problems: Iterable[Problem], config: Config) -> None:
        """Show what is wrong with the current settings. Dismissed entries come back only with a new one."""
        current, before = _sort_findings(problems, config), self._current_findings
        if current == before:
            return
        self._current_findings = current
        self._report = tuple(f for f in self._report if f not in before or f in current)
        if not set(current) <= set(before):
            self._is_current_dismissed = False
        self.changed()

    def drop_settled(self, config: Config) -> None:
        """Drop what was to be changed and has been since, also in a dismissed list."""
        title, dismissed = self._dismissed_report
        kept, kept_dismissed = self._unsettled(self._report, config), self._unsettled(dismissed, config)
        if (kept, kept_dismissed) != (self._report, dismissed):
            self._report, self._dismissed_report = kept, (title, kept_dismissed)
            self.changed()

    def _unsettled(self, findings: Iterable[Finding], config: Config) -> tuple[Finding, ...]:
        """Return the findings about a setting that is as it was; other notes hold for one method and family."""
        before = self._config
        is_other_run = any(name_of(value_at(before, path)) != name_of(value_at(config, path)) for path in TOP_BAR)

        def holds(problem: Problem) -> bool:
            if problem.severity == "info" and (self._keeps_notes or is_other_run):
                return self._keeps_notes
            return bool(value_at(before, problem.path) == value_at(config, problem.path))

        return tuple(f for f in findings if not f.page or holds(f.problem))

    def toggle(self, severity: Severity) -> None:
        """Hide or show the entries of a kind."""
        self.hidden ^= {severity}
        self.changed()

    def dismiss(self) -> None:
        """Dismiss the list; `bring_back` restores it."""
        if self._report:
            self._dismissed_report = (self._title, self._report)
        self._report, self._title = (), ""
        self._is_current_dismissed = bool(self._current_findings)
        self.changed()

    def bring_back(self) -> None:
        """Show the list that was dismissed last."""
        if self._dismissed_report[1]:
            (self._title, self._report), self._dismissed_report = self._dismissed_report, ("", ())
        self._is_current_dismissed = False
        self.changed()


def locate(problem: Problem, config: Config) -> Finding:
    """Return a problem with its place as text: the page and the field's label.

    A setting in `unknown` has no field, so it links to nothing.
    """
    page = page_of(type(config), problem.path)
    if page is None or is_unknown(problem.path, config):
        return Finding(problem, problem.path, "")
    label = label_of(problem.path, config)
    title = TOP_BAR_TITLE if problem.path in TOP_BAR else page.title
    return Finding(problem, f"{title} › {label}" if label else title, page.key)


def is_unknown(path: str, config: Config) -> bool:
    """Return whether a path belongs to a setting kept in `unknown`."""
    return any(path == key or path.startswith(f"{key}.") for key in ("unknown", *config.unknown))


def label_of(path: str, config: Config) -> str:
    """Return the label of the field at a path; for a field in a list or a part, with the entry's name."""
    record = record_at(config, path)
    entry = entry_name(path, config)
    if record is None:
        return entry
    return f"{entry}: {record.label}" if entry else record.label


def entry_name(path: str, config: Config) -> str:
    """Return the name of the list entry or the model part that a path leads into, else an empty text."""
    names = path.split(".")
    if names[0] == "parts" and len(names) > 1:
        return next((p.label for p in config.family.parts if p.name == names[1]), names[1])
    for index, name in enumerate(names):
        if name.isdigit():
            item = value_at(config, ".".join(names[: index + 1]))
            if isinstance(item, Concept) and item.path:
                return item.label
            return str(getattr(item, "name", "")) or f"entry {int(name) + 1}"
    return ""


def count_of_severity(severity: Severity, number: int) -> str:
    """Return the number of entries of a kind as text."""
    return f"{number:,} {_SEVERITY_NAMES[severity]}{'' if number == 1 else 's'}"


def _sort_findings(problems: Iterable[Problem], config: Config) -> tuple[Finding, ...]:
    return tuple(sorted((locate(problem, config) for problem in problems), key=_rank))


def _rank(finding: Finding) -> tuple[int, int]:
    return SEVERITIES.index(finding.problem.severity), _PAGE_ORDER.get(finding.page, len(_PAGE_ORDER))
