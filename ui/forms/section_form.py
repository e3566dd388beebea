"""The form of a job: a row for each of its settings, generated from their records."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, cast

from modules.config.records import top_records
from modules.config.schema import Config
from modules.settings.edit import is_relevant
from modules.settings.field import FieldRecord, Section
from modules.system.errors import DarkroomError
from ui.forms.context import Context
from ui.forms.field_problems import NoFieldProblems
from ui.forms.fields import Row
from ui.forms.group_card import attach_reset_menu
from ui.forms.model import FormModel
from ui.widgets.panel import Panel

_LABEL_WIDTH = 150


class SectionForm(Panel):
    """The rows of a section by name, on a card. `model` holds the settings; a row whose condition fails is hidden.

    Fields in `without` have no row. Those in `first` come before the others, those in `last` after them.
    """

    def __init__(
        self,
        master: tk.Misc,
        context: Context,
        settings: Section,
        *,
        without: Collection[str] = (),
        first: Sequence[str] = (),
        last: Sequence[str] = (),
    ) -> None:
        super().__init__(master, context.theme, "card")
        # A form model edits any tree of sections; its other users read a config from it.
        self.model = FormModel(cast("Config", settings))
        self.rows: dict[str, Row] = {}
        self.columnconfigure(1, minsize=context.theme.px(_LABEL_WIDTH))
        self.columnconfigure(2, weight=1)
        inner = replace(context, form=self.model, field_problems=NoFieldProblems())
        records = [r for r in top_records(type(settings)).values() if r.path not in without]
        for line, record in enumerate(sorted(records, key=lambda r: _place(r, first, last))):
            row = Row(self, inner, record, line, is_inner=False)
            for target in row.tip_targets:
                context.tips.attach(target, row.tip)
            attach_reset_menu(row.menu_target, inner, record)
            self.rows[record.path] = row
        self.model.changed.subscribe(self._follow)
        self._follow()

    @property
    def settings(self) -> Section:
        """The settings. Raises DarkroomError if an entry is not valid."""
        for path, draft in self.model.drafts.items():
            raise DarkroomError(f"{self.rows[path].record.label}: {draft.problem.message}")
        return self.model.config

    def set(self, name: str, value: Any) -> None:
        """Change a setting."""
        self.model.edit(name, value)

    def destroy(self) -> None:
        """Also unsubscribe from the model."""
        for row in self.rows.values():
            row.close()
        self.rows.clear()
        super().destroy()

    def _follow(self) -> None:
        for row in self.rows.values():
            row.set_shown(is_relevant(self.model.config, row.record))


def _place(record: FieldRecord, first: Sequence[str], last: Sequence[str]) -> tuple[bool, int]:
    if record.path in first:
        return False, first.index(record.path) - len(first)
    return record.path in last, 0
