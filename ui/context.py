"""The models and services of a window, passed to every page as one frozen record. There are no globals."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from modules.system.paths import from_root
from ui.actions import ActionTable
from ui.documents import Documents
from ui.findings import Findings
from ui.forms.field_problems import FieldProblems
from ui.forms.model import FormModel
from ui.interaction import Interaction
from ui.navigation import Navigation
from ui.notices import Notices
from ui.preferences import Preferences
from ui.run.pump import Pump
from ui.run.queue_control import QueueControl
from ui.run.session import RunSession
from ui.run.starting import Starter
from ui.signal import Signal
from ui.theme import Theme
from ui.view_state import ViewState
from ui.widgets.action_button import ActionButtons
from ui.widgets.tooltip import Tooltips


@dataclass(frozen=True, slots=True)
class Context:
    """The window's parts; they reach each other only through this record."""

    root: tk.Tk
    theme: Theme
    form: FormModel
    field_problems: FieldProblems
    session: RunSession
    pump: Pump
    starter: Starter
    documents: Documents
    findings: Findings
    navigation: Navigation
    notices: Notices
    actions: ActionTable
    interaction: Interaction
    preferences: Preferences
    tips: Tooltips
    buttons: ActionButtons
    notify: Callable[[str], None]
    queue: QueueControl
    show_run: Callable[[Path], None]  # on the Run history page
    view_state: ViewState
    captions_changed: Signal[[]] = field(default_factory=Signal)  # captions or masks were written: counts are stale

    def workspaces(self) -> tuple[Path, ...]:
        """Return the form's workspace and those of earlier runs."""
        names = (self.form.config.general.workspace_dir, *self.preferences.now.workspaces)
        return tuple(dict.fromkeys(from_root(name) for name in names if name.strip()))
