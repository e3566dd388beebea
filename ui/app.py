"""The program's window: creates all parts, connects them, shows them, and saves the session at the end."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from modules.config.presets import BUILT_IN_DIR
from modules.system.paths import PROGRAM_ROOT, from_root, log_dir, queue_file, session_file, user_presets_dir
from trainer.child.run import launch_child
from trainer.launch import RunRequest, launch
from trainer.run_queue.file import QueueFile
from ui.actions import ActionTable, sequences_of
from ui.commands import add_actions
from ui.context import Context
from ui.diagnostics import Diagnostics
from ui.documents import Documents, first_form
from ui.findings import Findings
from ui.forms.field_problems import FieldProblems
from ui.interaction import Answer, Interaction
from ui.navigation import Navigation
from ui.notices import Notice, Notices, Reply
from ui.preferences import Preferences
from ui.run.offers import CRASHED, Offers
from ui.run.pump import Pump
from ui.run.queue_control import QueueControl
from ui.run.session import Launch, RunSession
from ui.run.starting import Starter, run_failure
from ui.run.tensorboard_control import TensorBoardControl
from ui.settings import load_session, save_session
from ui.shell import Shell, import_pages
from ui.theme import Theme
from ui.tool_actions import add_tool_actions
from ui.widgets.action_button import ActionButtons
from ui.widgets.dialog import Dialog
from ui.widgets.dropping import accept_paths
from ui.widgets.file_dialog import FileServices
from ui.widgets.icon import set_icon
from ui.widgets.scroll import bind_wheel
from ui.widgets.tk_interaction import TkInteraction
from ui.widgets.tooltip import Tooltips
from ui.widgets.ttk_style import style_ttk
from ui.widgets.window import bind_clicks, cancel_pending, create_root, forget_window, switch_mode

DEFAULT_SIZE = (1180, 780)
MIN_SIZE = (1024, 600)
_SCALE = "scale"  # the key of the notice that another scale was chosen


class App:
    """One window. Tests pass their own launch, a scripted interaction and a temporary session."""

    def __init__(
        self,
        *,
        config_path: Path | None = None,
        interaction: Interaction | None = None,
        launch_run: Launch = launch,
        launch_queued: Launch = launch_child,
        root: tk.Tk | None = None,
    ) -> None:
        self.diagnostics = Diagnostics(log_dir())
        self.diagnostics.install()
        self._session_file = session_file()
        self._last = load_session(self._session_file)
        self.preferences = Preferences(self._last.settings)
        self._scale_percent = self.preferences.now.scale_percent
        self.theme = Theme(self.preferences.now.appearance)
        self._owns_root = root is None
        self._is_closing = False  # as soon as the run has ended
        self._is_closed = False
        self.wants_reopen = False  # the program opens another window when this one has closed
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
            self.context.pump.background,
            lambda: self.form.config,
            self._notify,
            self.context.interaction.show_failure,
        )
        self.shell = self._make_shell()
        self._connect()
        self._first_page(config_path)

    # -- life

    def show(self, on_visible: Callable[[], None] | None = None) -> None:
        """Show the window; work that is not urgent starts after it is drawn."""
        self._place()
        self.root.deiconify()
        self.root.update()
        self.context.pump.tick()
        self.root.update()
        if on_visible is not None:
            on_visible()
        set_icon(self.root)
        accept_paths(self.root, self.shell, self._dropped)
        self.context.pump.start()
        self.context.starter.look_for_backup()
        self.tensorboard.follow_setting()
        self.offers.look(self.context.workspaces())
        self.context.pump.background.run(import_pages, lambda _done: None)

    def run(self) -> None:
        """Run the window until it is closed."""
        self.root.mainloop()

    def save_session(self) -> None:
        """Save the config and the window's settings."""
        self._session_writer()()

    def save_session_soon(self) -> None:
        """Save in the background: flushing to a busy disk takes a quarter of a second."""
        self.context.pump.background.run(self._session_writer(), lambda _done: None)

    def _prepare_start(self) -> None:
        """Finish pending window work before the training thread competes for the interpreter."""
        self.preferences.note_workspace(from_root(self.form.config.general.workspace_dir))
        self.context.notices.remove(CRASHED)  # it is on the Runs page, for when this run has ended
        self.save_session_soon()
        self.context.navigation.open("run")

    def _note_workspace(self, request: RunRequest) -> None:
        """Remember the workspace of a run of the queue; the open page stays."""
        self.context.notices.remove(CRASHED)
        self.preferences.note_workspace(from_root(request.config.general.workspace_dir))

    def _session_writer(self) -> Callable[[], None]:
        self.preferences.change(geometry=self.root.geometry(), page=self.context.navigation.page)
        return partial(save_session, self._session_file, self.form.document, self.preferences.now)

    def ask_to_close(self) -> None:
        """Close; ask first while a run is active."""
        session = self.context.session
        if not session.is_active:
            self.close()
            return
        if self._is_closing:
            return  # it will, as soon as the run has ended
        answers = (
            Answer("keep", "Keep training", is_default=True),
            Answer("stop", "Stop and close"),
        )
        message = "Stop writes a backup from which the run can resume. The window closes when the run has ended."
        if self.context.interaction.choose("Training is running", message, answers, "warning") == "stop":
            self._is_closing = True
            self.context.queue.leave()
            session.changed.subscribe(self._close_when_over)
            session.stop()
            self._close_when_over()

    def close(self) -> None:
        """Save the session and end the program."""
        if self._is_closed:
            return
        self._is_closed = True
        self.save_session()
        self.context.pump.stop()
        self.context.queue.close()
        self.tensorboard.close()
        self.context.tips.close()
        self.diagnostics.close()
        if self._owns_root:
            cancel_pending(self.root)
            self.root.destroy()
            forget_window(self.root)
        else:
            self.shell.destroy()

    # -- building

    def _make_context(self, interaction: Interaction, launch_run: Launch, launch_queued: Launch) -> Context:
        pump = Pump(self.root.after)
        session = RunSession(pump.background, launch_run=launch_run)
        pump.add_source(session.drain)
        queue = QueueControl(
            QueueFile(queue_file()),
            session,
            pump.background,
            launch_child=launch_queued,
            before_run=self._note_workspace,
            notify=self._notify,
        )
        pump.add_source(queue.look)
        findings = Findings()
        notices = Notices()
        navigation = Navigation(self.form, self.preferences.now.page)
        tips = Tooltips(self.root, self.theme)
        actions = ActionTable()
        return Context(
            root=self.root,
            theme=self.theme,
            form=self.form,
            field_problems=FieldProblems(self.form, pump),
            session=session,
            pump=pump,
            starter=Starter(
                self.form,
                session,
                pump,
                interaction,
                findings,
                before_start=self._prepare_start,
            ),
            documents=Documents(self.form, interaction, findings, self.preferences, notices, self._notify),
            findings=findings,
            navigation=navigation,
            notices=notices,
            actions=actions,
            interaction=interaction,
            preferences=self.preferences,
            tips=tips,
            buttons=ActionButtons(actions, self.theme, tips),
            notify=self._notify,
            queue=queue,
            show_run=self._show_run,
        )

    def _make_shell(self) -> Shell:
        self.root.title("Darkroom")
        style_ttk(self.root, self.theme)
        add_actions(
            self.context,
            open_save_menu=lambda: self.shell.top_bar.open_save_menu(),
            open_preset_menu=lambda: self.shell.top_bar.open_menu(),
            close=self.ask_to_close,
        )
        add_tool_actions(
            self.context, open_tensorboard=self.tensorboard.open, log_file=lambda: self.diagnostics.log_file
        )
        shell = Shell(self.context)
        shell.pack(fill="both", expand=True)
        return shell

    def _places(self) -> Sequence[tuple[str, Path]]:
        """Return the folders of the program that its file dialogs offer."""
        general, model = self.form.config.general, from_root(self.form.config.model.base_model or ".")
        return (
            ("Workspace", from_root(general.workspace_dir)),
            ("Models", model.parent if model.exists() and model != PROGRAM_ROOT else PROGRAM_ROOT / "models"),
            ("Presets", user_presets_dir()),
            ("Built-in presets", BUILT_IN_DIR),
            ("Darkroom", PROGRAM_ROOT),
        )

    def _connect(self) -> None:
        context = self.context
        for action in context.actions:
            for sequence in sequences_of(action.shortcut) if action.shortcut else ():
                self.root.bind_all(sequence, partial(self._pressed, action.name))
        bind_wheel(self.root)
        bind_clicks(self.root)
        self.root.protocol("WM_DELETE_WINDOW", self.ask_to_close)
        context.preferences.changed.subscribe(self._apply_appearance)
        context.form.changed.subscribe(self._refresh_soon)
        context.session.changed.subscribe(self._refresh_soon)
        context.starter.changed.subscribe(self._refresh_soon)
        context.form.watch("general.workspace_dir", context.starter.look_for_backup)
        context.form.watch("general.tensorboard_always_on", self.tensorboard.follow_setting)
        context.field_problems.changed.subscribe(self._show_current_problems)
        context.session.changed.subscribe(self._run_may_be_over)
        self._was_active = False
        self.offers = Offers(
            context.notices,
            context.starter,
            context.queue,
            context.preferences,
            context.pump.background,
            show_run=self._show_run,
            show_queue=partial(context.navigation.open, "queue"),
            save_edited=lambda: context.queue.save_edited(context.form.config),
        )

    def _show_run(self, run_dir: Path) -> None:
        self.context.navigation.open("runs")
        page: Any = self.shell.page("runs")
        page.show_run(run_dir)

    def _first_page(self, config_path: Path | None) -> None:
        if self._last.problems:
            self.context.findings.show("The last session", self._last.problems, self.form.config)
        if config_path is not None:
            self.context.documents.open_file(config_path)
        self.context.navigation.open(self.context.navigation.page)

    # -- reacting

    def _dropped(self, paths: Sequence[Path]) -> None:
        if not self.context.documents.open_dropped(paths):
            self._notify("Drop configs here; drop folders of images on the Concepts page.")

    def _notify(self, text: str) -> None:
        self.shell.bottom_bar.notify(text)

    def _pressed(self, name: str, event: tk.Event[Any]) -> str | None:
        widget = event.widget  # menus have widgets that tkinter does not know
        if not isinstance(widget, tk.Misc) or isinstance(widget.winfo_toplevel(), Dialog):
            return None  # a modal dialog is open
        self.context.actions.run(name)
        return "break"

    def _refresh_soon(self) -> None:
        self.context.pump.redraw_soon("buttons", self.context.buttons.refresh)

    def _show_current_problems(self) -> None:
        self.context.findings.show_current(self.context.field_problems.found, self.form.config)

    def _apply_appearance(self) -> None:
        mode = self.preferences.now.appearance
        if mode != self.theme.mode:
            self.context.pump.work_through("appearance", switch_mode(self.root, self.theme, mode))
        if self.preferences.now.scale_percent != self._scale_percent:
            self._scale_percent = self.preferences.now.scale_percent
            self._offer_to_reopen()

    def _offer_to_reopen(self) -> None:
        """Say that the scale changes with the next window, and offer to open it now."""
        text = "The new scale applies when the window is opened again."
        if self.context.session.is_active:
            self.context.notices.show(Notice(_SCALE, f"{text} Close it when the run has ended."))
        else:
            reply = Reply("Reopen now", self.reopen)
            self.context.notices.show(Notice(_SCALE, f"{text} Settings and changes stay.", (reply,)))

    def reopen(self) -> None:
        """Close the window and open it again with the same settings and changes, unless a run is active."""
        if not self.context.session.is_active:
            self.wants_reopen = True
            self.close()

    def _run_may_be_over(self) -> None:
        is_active = self.context.session.is_active
        if self._was_active and not is_active:
            self.context.starter.look_for_backup()
            is_unwatched = self._is_closing or self.context.queue.owns_run  # the queue continues, and its page shows it
            if self.context.session.state.failed is not None and not is_unwatched:
                self.root.after_idle(self._show_run_failure)
        self._was_active = is_active

    def _show_run_failure(self) -> None:
        failed = self.context.session.state.failed
        if failed is not None:
            self.context.interaction.show_failure(run_failure(failed))

    def _close_when_over(self) -> None:
        """Close once the run has ended; this is the session's last change."""
        if not self.context.session.is_active:
            self.root.after_idle(self.close)

    def _place(self) -> None:
        """Restore the window's last size and position if it is still on the screen; else use the default."""
        px, root = self.theme.px, self.root
        screen = (root.winfo_screenwidth(), root.winfo_screenheight())
        root.minsize(*(min(px(want), have) for want, have in zip(MIN_SIZE, screen, strict=True)))
        root.geometry(fitting_geometry(self.preferences.now.geometry, screen) or self._default_geometry(screen))

    def _default_geometry(self, screen: tuple[int, int]) -> str:
        width, height = (min(self.theme.px(want), have) for want, have in zip(DEFAULT_SIZE, screen, strict=True))
        return f"{width}x{height}+{(screen[0] - width) // 2}+{(screen[1] - height) // 3}"


def fitting_geometry(geometry: str, screen: tuple[int, int]) -> str:
    """Return a saved geometry if the window would be on the screen with it; else an empty text."""
    try:
        size, x, y = geometry.split("+")
        width, height = (int(n) for n in size.split("x"))
        left, top = int(x), int(y)
    except ValueError:
        return ""
    is_on_screen = 0 <= left < screen[0] - 100 and 0 <= top < screen[1] - 100
    return geometry if is_on_screen and width <= screen[0] and height <= screen[1] else ""
