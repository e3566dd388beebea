"""The models and services of a window, passed to every page as one frozen record. There are no globals."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from modules.config.presets import Preset
from modules.config.schema import Config
from modules.data.concept import Concept
from modules.system.paths import from_root
from ui.forms.documents import Documents
from ui.forms.field_problems import FieldProblems
from ui.forms.findings import Findings
from ui.forms.model import FormModel
from ui.forms.preferences import Preferences
from ui.forms.setting_pages import Navigation
from ui.loop.interaction import Interaction, failure_of
from ui.loop.pump import Pump
from ui.loop.run_session import RunSession
from ui.loop.signal import Signal
from ui.widgets.action_button import ActionButtons
from ui.widgets.actions import ActionTable
from ui.widgets.notices import Notices
from ui.widgets.theme import Theme
from ui.widgets.tooltip import Tooltips

if TYPE_CHECKING:
    from trainer.preflight.report import Report
    from trainer.run_folder.backup import BackupInfo
    from trainer.run_folder.fork import ForkSource
    from ui.loop.past_runs import Result

M = TypeVar("M")


class RunStarter(Protocol):
    """The part of the Run page's model that other features use: starting and resuming runs."""

    changed: Signal[[]]
    resumable: BackupInfo | None

    @property
    def can_start(self) -> bool:
        """Whether a run can be started."""

    @property
    def current_report(self) -> Report | None:
        """The report of the last check, if the settings are still those that were checked."""

    def known_steps(self, config: Config) -> int:
        """Return how many steps a run of a config has; 0 if no check has counted them."""

    def resume_run(self, backup: BackupInfo) -> None:
        """Resume a run from one of its backups."""

    def ask_longer(
        self, backup: BackupInfo, epochs: int, result: str, notify: Callable[[str], object], *, stopped_early: bool
    ) -> None:
        """Ask for a number of epochs, and resume a run from its last backup for so many more than it has trained."""

    def compare_images(self, backup: BackupInfo) -> None:
        """Report on the images of a run with the model of one of its backups."""

    @property
    def fork_from(self) -> ForkSource | None:
        """The state that the next start begins a new run from; None for a plain start."""

    def prepare_fork(self, source: ForkSource, config: Config) -> None:
        """Load the settings of a fork. The next start begins it."""

    def look_for_backup(self) -> None:
        """Search for a run to resume in the workspace."""


@dataclass(frozen=True, slots=True, eq=False)
class FeatureLinks:
    """The windows of features that others open. The features do not know each other: the app passes these."""

    edit_captions: Callable[[int, Path | None], object]  # of the concept at this place in the config, at an image
    show_losses: Callable[[Sequence[Path]], object]  # on the grid of the concept that has the first of these images
    write_captions: Callable[[Concept | None], object]  # with a model; None: of the first concept
    choose_base_model: Callable[[Context], object]  # of the form of a context
    install_packages: Callable[[Sequence[str], Callable[[], object]], object]  # by pip name; then call a function
    enter_secret: Callable[[str], object]  # in the dialog of tokens, by its name
    train_on: Callable[
        [str, Mapping[str, object]], object
    ]  # another family, with the settings that name its base model
    try_result: Callable[[Result], object]  # on the Generate page
    show_run: Callable[[Path], object]  # on the Run history page
    follow_run: Callable[..., object]  # one on another machine, which it `resumes` first if wanted
    places: Callable[[], Mapping[str, str]]  # where runs can train: machines by name, "" is this computer
    compare_checkpoints: Callable[[Sequence[Path]], object]  # of runs, by their folders
    show_run_changes: Callable[[], object]  # the settings that the current run does not have
    add_presets: Callable[[tk.Menu, Sequence[Preset], Callable[[Preset], object]], object]  # submenus of all presets


class Models:
    """The features' models that last as long as the window, by their class."""

    def __init__(self, *models: object) -> None:
        self._models = {type(model): model for model in models}

    def of(self, kind: type[M]) -> M:
        """Return the model of a class."""
        model = self._models[kind]
        assert isinstance(model, kind)
        return model


@dataclass(frozen=True, slots=True, eq=False)
class Context:
    """The window's parts; they reach each other only through this record."""

    root: tk.Tk
    theme: Theme
    form: FormModel
    field_problems: FieldProblems
    session: RunSession
    pump: Pump
    starter: RunStarter
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
    links: FeatureLinks
    models: Models
    view_state: ViewState
    captions_changed: Signal[[]] = field(default_factory=Signal)  # captions or masks were written: counts are stale

    def show_error(self, title: str, error: Exception, *, advice: str = "") -> None:
        """Show an error; `advice` is for those that have none."""
        self.interaction.show_failure(failure_of(title, error, advice))

    def workspaces(self) -> tuple[Path, ...]:
        """Return the workspaces of the form and of earlier runs."""
        names = (self.form.config.general.workspace_dir, *self.preferences.now.workspaces)
        return tuple(dict.fromkeys(from_root(name) for name in names if name.strip()))


T = TypeVar("T")


class ViewState:
    """Values by the names of the views that they belong to; they last as long as the window."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}

    def of(self, name: str, make: Callable[[], T]) -> T:
        """Return the state of a view; it is made when it is first needed."""
        if name not in self._values:
            self._values[name] = make()
        value: T = self._values[name]
        return value
