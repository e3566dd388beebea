"""The program's window: creates all parts, connects them, shows them, and saves the session at the end."""

from __future__ import annotations

import logging
import os
import tkinter as tk
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modules.config.presets import BUILT_IN_DIR
from modules.system.factories import load_factory
from modules.system.paths import PROGRAM_ROOT, from_root, log_dir, queue_file, session_file, user_presets_dir
from trainer.run_queue.file import QueueFile
from ui.app.actions import add_actions, add_tool_actions, make_feature_links
from ui.app.catalogue import PAGES
from ui.app.closing import Closing
from ui.app.offers import Offers
from ui.app.other_programs import OtherPrograms
from ui.app.remedies import add_remedy_actions
from ui.app.run_ends import RunEnds
from ui.app.session_files import take_session
from ui.app.session_saving import SessionSaver
from ui.app.shell import Shell, prepare_pages
from ui.app.views import Views
from ui.features.queue.model import QueueControl
from ui.features.remote.model import Machines
from ui.features.remote.renting import Renting
from ui.features.run.model import Starter
from ui.features.tensorboard import TensorBoardControl, may_expose
from ui.features.web.model import WebPage
from ui.forms.card_fit import CardFit
from ui.forms.context import Context, Models, ViewState
from ui.forms.documents import Documents, first_form
from ui.forms.field_problems import FieldProblems
from ui.forms.findings import Findings
from ui.forms.preferences import Preferences, UiSettings
from ui.forms.setting_pages import Navigation
from ui.loop.diagnostics import Diagnostics
from ui.loop.interaction import Interaction
from ui.loop.pump import Pump
from ui.loop.run_session import Launch, RunSession, launch_as_set
from ui.loop.signal import forget_listeners_since, new_key
from ui.widgets.action_button import ActionButtons
from ui.widgets.actions import ActionTable, sequences_of
from ui.widgets.dialog import Dialog, Window
from ui.widgets.notices import CRASHED_RUN, Notices
from ui.widgets.panel import call_later
from ui.widgets.scroll import bind_wheel
from ui.widgets.theme import Theme
from ui.widgets.tk_interaction import FileServices, TkInteraction
from ui.widgets.tooltip import Tooltips
from ui.widgets.window import (
    bind_clicks,
    bind_keypad,
    cancel_pending,
    create_root,
    forget_window,
    place,
)

if TYPE_CHECKING:  # the window needs these when a run begins
    from trainer.launch import LaunchedRun, RunRequest

_log = logging.getLogger(__name__)


def _launch_child(request: RunRequest) -> LaunchedRun:
    from trainer.child import run

    return run.launch_child(request)


class App:
    """One window. Tests pass their own launch, a scripted interaction and a temporary session."""

    def __init__(
        self,
        *,
        config_path: Path | None = None,
        interaction: Interaction | None = None,
        launch_run: Launch = launch_as_set,
        launch_queued: Launch = _launch_child,
        root: tk.Tk | None = None,
    ) -> None:
        self.diagnostics = Diagnostics(log_dir())
        self.diagnostics.install()
        self._session = take_session(session_file())
        self._last = self._session.last
        self.preferences = Preferences(self._last.settings)
        self.theme = Theme(self.preferences.now.appearance)
        self._first_listener = new_key()
        self._owns_root = root is None
        self._is_closed = False
        self.root = root or create_root(self.theme, scale_percent=self.preferences.now.scale_percent)
        self.root.report_callback_exception = self.diagnostics.on_exception
        self.form = self._last.form or first_form()
        interaction = interaction or TkInteraction(self.root, self.theme)
        self.context = self._make_context(interaction, launch_run, launch_queued)
        if isinstance(interaction, TkInteraction):
            interaction.serve_files(FileServices(self.context.pump, self.preferences, self._places))
        self.diagnostics.show = self.context.interaction.show_failure
        self.diagnostics.defer = partial(self.root.after, 0)  # not `after_idle`: any redraw might run that
        self.tensorboard = TensorBoardControl(
            self.context.pump.lasting,
            lambda: self.form.config,
            self._notify,
            self.context.interaction.show_failure,
            install=lambda: self.context.links.install_packages(("tensorboard",), self.tensorboard.open),
            may_expose=partial(may_expose, self.context.preferences, self.context.interaction),
        )
        self.closing = Closing(
            self.context,
            self.queue,
            close=self.close,
            end_now=self._end_now,
            save=lambda: self.session_saver.save_soon(),
            opens_file=config_path is not None,
        )
        self.session_saver = SessionSaver(self._session.file, self.form, self.context.pump, self._settings_now)
        self._add_actions()
        self._connect()
        self._views = Views(self.context, save=self.session_saver.save_soon, open_dropped=self._open_dropped)
        self._first_page(config_path)

    @property
    def shell(self) -> Shell:
        """The frame with the bars and pages: another one after a change of the scale."""
        return self._views.shell

    # -- life

    def show(self, on_visible: Callable[[], None] | None = None) -> None:
        """Show the window; work that is not urgent starts after it is drawn."""
        place(self.root, self.theme, self.preferences.now.geometry)
        self.root.deiconify()
        self.root.update()
        self.context.pump.draw()
        self.root.update()
        if on_visible is not None:
            on_visible()
        load_factory("ui.widgets.icon:set_icon")(self.root)
        self._views.accept_drops()
        self.context.pump.start()
        self.context.field_problems.check()  # files may be gone since the last session
        self.context.pump.background.run(self.diagnostics.log_system_facts, lambda _: None)
        self.starter.look_for_backup()
        self.tensorboard.follow_setting()
        self.closing.look()
        self.offers.look(self.context.workspaces())
        self._offer_sessions()
        prepare_pages(self.context.pump)

    def run(self) -> None:
        """Run the window until it is closed. Ctrl-C and the system's request to end close it in order."""
        from trainer.cli.signals import at_signal
        from ui.widgets.display import at_lost_display

        try:
            with at_signal(self._end_soon), at_lost_display(self._leave_display):
                self.root.mainloop()
        finally:
            self.context.session.leave()  # whatever has ended the loop

    def _end_soon(self) -> None:
        if not self._is_closed:  # else it waits for the run already, which a second signal of the kind cuts short
            call_later(self.root, 0, self.closing.end)

    def _leave_display(self) -> None:
        """End without the window, whose display is gone: a run of this process stops with its backup."""
        self._is_closed = True  # a signal must not use Tk any more
        _log.warning("The display of the window is gone. It ends; a run that it trains stops with a backup first.")
        try:
            settings = self.preferences.now.model_copy(update={"page": self.context.navigation.page})
            self.session_saver.save_now(settings)  # what was typed in the last second
            self._end_processes()
        finally:
            self.context.session.leave()
            self._session.release()

    def _end_now(self) -> None:
        """End the process without waiting for the run that is being stopped, which may hang."""
        _log.warning("The window was ended before its run had stopped.")
        try:
            self._close_windows()
            self.save_session()
            self._end_processes()
        finally:
            os._exit(1)

    def _close_windows(self) -> None:
        """Close the editors and other windows, before the pages, to which they report their last changes."""
        for window in [w for w in self.root.winfo_children() if isinstance(w, Window)]:
            window.destroy()

    def save_session(self) -> None:
        """Save the config and the window's settings."""
        self.session_saver.save_now()

    def _prepare_start(self) -> None:
        """Finish pending window work before the training thread competes for the interpreter."""
        self.preferences.note_workspace(from_root(self.form.config.general.workspace_dir))
        self.context.notices.remove(CRASHED_RUN)  # it is on the Run history page, for when this run has ended
        self.context.notices.withdraw_before_start()
        self.session_saver.save_soon()
        self.context.navigation.open("run")

    def _note_workspace(self, request: RunRequest) -> None:
        """Remember the workspace of a run of the queue; the open page stays."""
        self.context.notices.remove(CRASHED_RUN)
        self.preferences.note_workspace(from_root(request.config.general.workspace_dir))

    def _settings_now(self) -> UiSettings:
        updates = {"geometry": self.root.geometry(), "page": self.context.navigation.page}
        return self.preferences.now.model_copy(update=updates)

    def close(self) -> None:
        """Save the session and end the program."""
        if self._is_closed:
            return
        self._is_closed = True
        self._close_windows()
        self.save_session()
        self._session.release()
        self.context.pump.stop()
        self._end_processes()
        self.context.tips.close()
        self.diagnostics.close()
        if self._owns_root:
            cancel_pending(self.root)
            self.root.destroy()
            forget_window(self.root)
            forget_listeners_since(self._first_listener)  # what waited for the answer of a dialog continues
        else:
            self.shell.destroy()
        self.context.session.leave()  # the last, for it waits for the backup of a run of this process

    def _end_processes(self) -> None:
        """Leave the queue to other programs, and end the processes that serve this window."""
        self.queue.close()
        self.tensorboard.close()
        self.web_page.close()
        self.context.models.of(Renting).close()

    # -- building

    def _make_context(self, interaction: Interaction, launch_run: Launch, launch_queued: Launch) -> Context:
        pump = Pump(self.root.after)
        session = RunSession(pump.lasting, launch_run=launch_run)
        pump.add_source(session.drain)
        self.queue = QueueControl(
            QueueFile(queue_file()),
            session,
            pump.lasting,
            launch_child=launch_queued,
            before_run=self._note_workspace,
            notify=self._notify,
        )
        pump.add_source(self.queue.look)
        findings = Findings()
        notices = Notices()
        navigation = Navigation(
            self.form,
            [page.key for page in PAGES],
            self.preferences.now.page,
            is_simple=lambda: self.preferences.now.is_simple,
            is_on_simple=lambda path: load_factory("ui.features.simple.model:has_field")(self.form.config, path),
        )
        tips = Tooltips(self.root, self.theme)
        actions = ActionTable()
        self.machines = Machines(self.preferences)
        renting = Renting(self.machines)
        pump.add_source(renting.background.drain)
        self.web_page = WebPage(lambda: self.context.workspaces(), self.preferences)
        self.preferences.changed.subscribe(self.web_page.send_workspaces)
        pump.add_source(self.web_page.drain)
        self.starter = Starter(
            self.form,
            session,
            pump,
            interaction,
            findings,
            before_start=self._prepare_start,
            machine=lambda: self.machines.chosen,
            machine_note=lambda: self.machines.note,
        )
        self.machines.changed.subscribe(self.starter.changed)
        card_fit = CardFit(
            self.form,
            pump.lasting,
            self._notify,
            is_card_free=lambda: session.stage == "idle" and not self.machines.chosen,
        )
        return Context(
            root=self.root,
            theme=self.theme,
            form=self.form,
            field_problems=FieldProblems(self.form, pump),
            session=session,
            pump=pump,
            starter=self.starter,
            documents=Documents(
                self.form, interaction, findings, self.preferences, notices, self._notify, card_fit, pump.lasting
            ),
            findings=findings,
            navigation=navigation,
            notices=notices,
            actions=actions,
            interaction=interaction,
            preferences=self.preferences,
            tips=tips,
            buttons=ActionButtons(actions, self.theme, tips),
            notify=self._notify,
            links=make_feature_links(
                lambda: self.context,
                show_run=lambda run_dir: self._open_page("runs").show_run(run_dir),
                follow_run=lambda run_dir, **how: self.closing.follow_elsewhere(run_dir, **how),
                try_result=lambda result: self._open_page("sample").sources.use_result(result, with_prompt=True),
                show_losses=lambda images: self._open_page("concepts").show_losses(images),
            ),
            models=Models(self.starter, self.queue, self.machines, renting, self.web_page),
            view_state=ViewState(),
        )

    def _add_actions(self) -> None:
        add_actions(
            self.context,
            open_save_menu=lambda: self.shell.top_bar.open_save_menu(),
            open_preset_menu=lambda: self.shell.top_bar.open_menu(),
            close=self.closing.ask,
        )
        add_remedy_actions(self.context)
        add_tool_actions(
            self.context, open_tensorboard=self.tensorboard.open, log_file=lambda: self.diagnostics.log_file
        )

    def _places(self) -> Sequence[tuple[str, Path]]:
        """Return the folders of the program that its file dialogs offer."""
        general, model = self.form.config.general, from_root(self.form.config.model.base_model or ".")
        return (
            ("Workspace", from_root(general.workspace_dir)),
            ("Results", from_root(self.form.config.output.destination).parent),
            ("Models", model.parent if model.exists() and model != PROGRAM_ROOT else PROGRAM_ROOT / "models"),
            ("Presets", user_presets_dir()),
            ("Built-in presets", BUILT_IN_DIR),
            ("Darkroom", PROGRAM_ROOT),
        )

    def _connect(self) -> None:
        context = self.context
        for action in context.actions:
            for sequence in sequences_of(action.shortcut) if action.shortcut else ():
                self.root.bind_all(sequence, partial(self._run_shortcut, action.name))
        bind_wheel(self.root)
        bind_clicks(self.root)
        bind_keypad(self.root)
        self.root.protocol("WM_DELETE_WINDOW", self.closing.ask)
        self.session_saver.follow_edits()
        context.form.changed.subscribe(self._refresh_soon)
        context.session.changed.subscribe(self._refresh_soon)
        self.starter.changed.subscribe(self._refresh_soon)
        context.captions_changed.subscribe(self.starter.check_again)
        context.form.watch("general.workspace_dir", self.starter.look_for_backup)
        context.form.watch("general.tensorboard_always_on", self.tensorboard.follow_setting)
        context.field_problems.changed.subscribe(self._show_current_problems)
        context.form.changed.subscribe(lambda: context.findings.drop_settled(context.form.config))
        # The queue continues after a failure, and its page shows it.
        RunEnds(context, self.starter, is_shown_elsewhere=lambda: self.closing.is_closing or self.queue.owns_run)
        self.offers = Offers(
            context.notices,
            self.starter,
            self.queue,
            context.preferences,
            context.pump.lasting,
            show_run=context.links.show_run,
            show_queue=partial(context.navigation.open, "queue"),
            save_edited=lambda: self.queue.save_edited(context.form.config),
        )
        self.other_programs = OtherPrograms(
            context.session,
            context.notices,
            context.pump.lasting,
            workspaces=context.workspaces,
            left_runs=self.closing.left_runs,
            follow=partial(self.closing.follow, opens_page=False),
            watch=self.closing.follow,
            show_run=context.links.show_run,
            ended=self.starter.look_for_backup,
        )
        context.pump.add_source(self.other_programs.look)

    def _offer_sessions(self) -> None:
        """Offer the unsaved work of windows that are gone."""
        from ui.app.abandoned_sessions import SessionOffers

        offers = SessionOffers(
            self._session,
            self.context.notices,
            self.context.interaction,
            self.context.pump.lasting,
            self.session_saver,
            open_session=self.context.documents.open_session,
            notify=self._notify,
        )
        offers.look(session_file(), self.form.document)

    def _open_page(self, key: str) -> Any:
        self.context.navigation.open(key)
        return self.shell.page(key)

    def _first_page(self, config_path: Path | None) -> None:
        if self._last.problems:
            self.context.findings.show("The last session", self._last.problems, self.form.config, keeps_notes=True)
        if config_path is not None:
            self.context.documents.open_file(config_path)
        self.context.navigation.open(self.context.navigation.page)

    # -- reacting

    def _open_dropped(self, paths: Sequence[Path]) -> None:
        if not self.context.documents.open_dropped(paths):
            self._notify("Drop configs here; drop folders of images on the Concepts page.")

    def _notify(self, text: str) -> None:
        self.shell.bottom_bar.notify(text)

    def _run_shortcut(self, name: str, event: tk.Event[Any]) -> str | None:
        widget = event.widget  # menus have widgets that tkinter does not know
        if not isinstance(widget, tk.Misc) or isinstance(widget.winfo_toplevel(), Dialog):
            return None  # a modal dialog is open
        self.context.actions.run(name)
        return "break"

    def _refresh_soon(self) -> None:
        self.context.pump.redraw_soon("buttons", self.context.buttons.refresh)

    def _show_current_problems(self) -> None:
        self.context.findings.show_current(self.context.field_problems.problems, self.form.config)
