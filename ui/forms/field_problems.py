"""What the rules find at each field while it is edited, such as a formula that cannot be read. No Tk."""

from __future__ import annotations

import logging

from modules.config.schema import Config
from modules.system.factories import load_factory
from modules.system.problem import Problem
from ui.forms.model import FormModel
from ui.run.background import Job
from ui.run.pump import Pump
from ui.signal import Signal

_log = logging.getLogger(__name__)
_RULES = "modules.config.rules:problems_of"  # imported by the background thread: the window starts without them


class FieldProblems:
    """The errors and warnings of the config by field, updated in the background after each edit."""

    def __init__(self, form: FormModel, pump: Pump) -> None:
        self.changed: Signal[[]] = Signal()
        self._form = form
        self._pump = pump
        self._by_path: dict[str, Problem] = {}
        self._checked: Config | None = None
        self._job: Job | None = None
        form.changed.subscribe(lambda: pump.redraw_soon(self, self.check))

    @property
    def is_current(self) -> bool:
        """Whether no check is under way."""
        return self._job is None

    def at(self, path: str) -> Problem | None:
        """Return the first error of a field, or its first warning; None without any."""
        return self._by_path.get(path)

    def check(self) -> None:
        """Apply the rules in the background, unless the config has been checked."""
        config = self._form.config
        if config is self._checked:
            return
        self._checked = config
        if self._job is not None:
            self._job.cancel()
        self._job = self._pump.background.run(lambda: load_factory(_RULES)(config), self._keep, self._fail)

    def _fail(self, error: Exception) -> None:
        self._job = None
        _log.error("The check of the settings failed", exc_info=error)

    def _keep(self, found: list[Problem]) -> None:
        self._job = None
        first: dict[str, Problem] = {}
        for severity in ("error", "warning"):
            for problem in found:
                if problem.severity == severity:
                    first.setdefault(problem.path, problem)
        if first != self._by_path:
            self._by_path = first
            self.changed()
