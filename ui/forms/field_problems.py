"""The problems of the settings while they are edited: rules are checked at once, files when typing stops."""

from __future__ import annotations

import logging
from collections.abc import Callable

from modules.config.schema import Config
from modules.system.factories import load_factory
from modules.system.problem import Problem
from ui.forms.model import FormModel
from ui.loop.background import Job
from ui.loop.pump import Pump
from ui.loop.signal import Signal

_log = logging.getLogger(__name__)
# Imported by the background thread: the window starts without them.
_RULES = "modules.config.rules:problems_of"
_FILES = "trainer.preflight.editing:problems_of_files"
QUIET_SECONDS = 0.5  # without an edit, before files are looked at


class FieldProblems:
    """The errors and warnings of the config, updated in the background after each edit."""

    def __init__(self, form: FormModel, pump: Pump) -> None:
        self.changed: Signal[[]] = Signal()
        self.problems: tuple[Problem, ...] = ()
        self._form = form
        self._pump = pump
        self._by_path: dict[str, Problem] = {}
        self._rules = _Check(_RULES, pump, self._merge)
        self._files = _Check(_FILES, pump, self._merge)
        form.changed.subscribe(self._follow_edit)

    @property
    def is_current(self) -> bool:
        """Whether no check is under way."""
        return self._rules.is_over and self._files.is_over

    @property
    def errors(self) -> tuple[str, ...]:
        """The paths of the settings with an error."""
        return tuple(path for path, problem in self._by_path.items() if problem.severity == "error")

    def at(self, path: str) -> Problem | None:
        """Return the first error of a field, or its first warning; None without any."""
        return self._by_path.get(path)

    def check(self) -> None:
        """Check the config in the background, unless it has been checked."""
        self._check_rules()
        self._files_soon()

    def check_again(self) -> None:
        """Check the config anew: what it refers to has changed."""
        for check in (self._rules, self._files):
            check.forget()
        self.check()

    def _check_rules(self) -> None:
        """Apply the rules. What a built-in preset lacks by design is not marked as a mistake: the start reports it."""
        form = self._form
        self._rules.run(form.config, form.baseline if form.source.kind == "built_in" else None)

    def _check_files(self) -> None:
        self._files.run(self._form.config)

    def _follow_edit(self) -> None:
        self._pump.redraw_soon(self, self._check_rules)
        self._files_soon()

    def _files_soon(self) -> None:
        if self._files.is_new(self._form.config):
            self._pump.redraw_soon((self, "files"), self._check_files, quiet_seconds=QUIET_SECONDS)

    def _merge(self) -> None:
        """Keep the problems of both checks; announce them if they have changed."""
        problems = [p for check in (self._rules, self._files) for p in check.problems if p.severity != "info"]
        self.problems = tuple(p for p in dict.fromkeys(problems) if not self._is_still_empty(p.path))
        first: dict[str, Problem] = {}
        for severity in ("error", "warning"):
            for problem in self.problems:
                if problem.severity == severity:
                    first.setdefault(problem.path, problem)
        if first != self._by_path:
            self._by_path = first
            self.changed()

    def _is_still_empty(self, path: str) -> bool:
        """Return whether a path leads to a list without entries, which is yet to be filled; the start reports it."""
        record = self._form.record(path)
        return record is not None and record.kind == "list" and not self._form.value(path)


class NoFieldProblems(FieldProblems):
    """For the forms of jobs, whose settings are checked when the job starts."""

    def __init__(self) -> None:
        self.changed = Signal()
        self.problems = ()
        self._by_path = {}

    def check(self) -> None:
        """Do nothing."""


class _Check:
    """One check and what it found last. At most one of its jobs runs: a share that does not answer blocks no other."""

    def __init__(self, function: str, pump: Pump, done: Callable[[], None]) -> None:
        self.problems: list[Problem] = []
        self._function = function
        self._pump = pump
        self._done = done
        self._config: Config | None = None
        self._shipped_config: Config | None = None
        self._job: Job | None = None

    @property
    def is_over(self) -> bool:
        """Whether no job of the check is under way."""
        return self._job is None

    def is_new(self, config: Config) -> bool:
        """Return whether a config has not been checked, and is not being checked."""
        return config is not self._config

    def run(self, config: Config, shipped: Config | None = None) -> None:
        """Check a config in the background, after the check of another one that is under way.

        Problems that `shipped` also has are left out.
        """
        if not self.is_new(config):
            return
        self._config, self._shipped_config = config, shipped
        if self._job is None:
            self._begin(config)

    def forget(self) -> None:
        """Let the same config be checked again."""
        self._config = None

    def _begin(self, config: Config) -> None:
        function, shipped = self._function, self._shipped_config

        def check() -> list[Problem]:
            find = load_factory(function)
            known = find(shipped) if shipped is not None else ()
            return [problem for problem in find(config) if problem not in known]

        self._job = self._pump.lasting.run(check, lambda problems: self._finish(config, problems), self._fail)

    def _finish(self, config: Config, problems: list[Problem]) -> None:
        self._job = None
        if self._config is not None and self._config is not config:
            self._begin(self._config)  # edited meanwhile: what was found is out of date
            return
        self.problems = problems
        self._done()

    def _fail(self, error: Exception) -> None:
        self._job = None
        _log.error("The check of the settings failed", exc_info=error)
