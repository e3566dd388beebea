"""The table of all user actions, with their shortcuts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from trainer.commands import BackupNow, Command, SampleNow, SaveNow, ValidateNow
from ui.actions import Action
from ui.bars.finder import Finder
from ui.bars.preset_menu import open_preset_list
from ui.concepts.captions import write_captions
from ui.context import Context
from ui.editors.differences import open_differences
from ui.editors.fit import open_fit
from ui.editors.json_view import open_json_view
from ui.editors.secrets import open_secrets
from ui.first_steps import CHOOSING
from ui.pages.catalogue import PAGES, PageSpec, page_shortcut


def add_actions(
    context: Context,
    *,
    open_save_menu: Callable[[], None],
    open_preset_menu: Callable[[], None],
    close: Callable[[], None],
) -> None:
    """Fill the context's table."""
    documents, starter, session = context.documents, context.starter, context.session
    context.actions.add(
        Action("load", "Load…", documents.open_file, "Ctrl+O", help=_LOAD_HELP),
        Action("save", "Save", documents.save, "Ctrl+S", help="Save to the loaded file"),
        Action("save_as", "Save as ▾", open_save_menu, help="Save as a file or as a preset"),
        Action("save_as_file", "Save as a file…", documents.save_as_file, "Ctrl+Shift+S"),
        Action(
            "export", "Export as one file…", documents.export, help="Write a copy that includes concepts and samples"
        ),
        Action("import_presets", "Import presets…", documents.import_presets, help=_IMPORT_HELP),
        Action("presets", "Presets…", open_preset_menu, "Ctrl+P", help="Choose a preset"),
        Action(
            "find_preset",
            "Find a preset…",
            lambda: _find_preset(context),
            "Ctrl+Shift+P",
            help="List all presets with what they are for, and search them",
        ),
        Action("demo", "Load the demo", documents.open_demo),
        Action("json", "Config as JSON…", lambda: _json(context), "Ctrl+J", help=_JSON_HELP),
        Action("first_steps", "First steps…", lambda: _first_steps(context), help="Show the card of the first start"),
        Action("differences", "Differences…", lambda: _differences(context), "Ctrl+D", help=_DIFFERS_HELP),
        Action("undo", "Undo", lambda: _undo(context), "Ctrl+Z"),
        Action("redo", "Redo", lambda: _redo(context), "Ctrl+Shift+Z"),
        Action("start", "Start", starter.start, "F5", lambda: starter.can_start, "Check the settings, then train"),
        Action("stop", "Stop", session.stop, "Shift+F5", lambda: session.stage in ("running", "paused"), _STOP_HELP),
        Action(
            "resume",
            "Resume run",
            starter.resume,
            "F6",
            lambda: starter.can_resume,
            "Resume the last run from its newest backup",
        ),
        Action(
            "pause",
            "Pause",
            session.pause,
            "F7",
            lambda: session.stage == "running",
            "Pause training; everything stays in memory",
        ),
        Action(
            "pause_free",
            "Pause and free the memory",
            lambda: session.pause(free_memory=True),
            "Shift+F7",
            lambda: session.stage in ("running", "paused"),
            _FREE_HELP,
        ),
        Action("unpause", "Continue", session.unpause, "F8", lambda: session.stage == "paused", "Continue training"),
        Action(
            "bring_back",
            "Show the dismissed report",
            context.findings.bring_back,
            is_enabled=lambda: context.findings.can_come_back,
        ),
        Action("find", "Find…", lambda: _find(context), "Ctrl+F", help="Find a setting, a command or a page"),
        Action("captions", "Captions and masks…", lambda: _edit_captions(context), "Ctrl+T", help=_CAPTIONS_HELP),
        Action("auto_captions", "Automatic captions…", lambda: write_captions(context), help=_AUTO_HELP),
        Action("fit", "Fit to my card…", lambda: _fit(context), help=_FIT_HELP),
        Action("probe", "Probe…", lambda: _probe(context), help=_PROBE_HELP),
        Action("tokens", "Tokens…", lambda: open_secrets(context), help=_TOKENS_HELP),
        Action("quit", "Quit", close, "Ctrl+Q"),
        Action(
            "open_run_folder",
            "Open folder",
            lambda: _open_run_folder(context),
            is_enabled=lambda: session.state.started is not None,
            help="Open this run's folder",
        ),
        *(_while_running(context, *row) for row in _NOW),
        *(_page_action(context, page) for page in PAGES),
    )
    starter.fit_wanted.subscribe(lambda: context.actions.run("fit"))


_LOAD_HELP = "Load a config (Darkroom, OneTrainer or kohya), or the settings in a LoRA file"
_IMPORT_HELP = "Import a folder of presets, such as OneTrainer's training_presets"
_DIFFERS_HELP = "List the settings that differ from the loaded file, a preset or the defaults"
_JSON_HELP = "Show the config as JSON, copy it, or load one from the clipboard"
_CAPTIONS_HELP = "Edit captions and masks of a concept or a folder, or write them with a model"
_AUTO_HELP = "Let a model write the captions of a concept or a folder: WD14 tags, BLIP or Florence-2"
_FIT_HELP = "Find the fastest settings whose memory fits the card, and what each costs"
_PROBE_HELP = "Measure the batch size and the learning rate on a few real steps"
_TOKENS_HELP = "Manage tokens and passwords, for example for Hugging Face"
_FREE_HELP = "Pause training and free the card's memory for other programs; Continue brings it back, bit for bit"
_STOP_HELP = "Stop the run; its backup can be resumed"
_NOW: tuple[tuple[str, str, Command, str], ...] = (
    ("sample_now", "Sample now", SampleNow(), "Generate samples after the current step"),
    ("validate_now", "Validate now", ValidateNow(), "Validate after the current step"),
    ("backup_now", "Back up now", BackupNow(), "Write a backup after the current step"),
    ("save_now", "Save now", SaveNow(), "Save the model after the current step"),
)


def _while_running(context: Context, name: str, label: str, command: Command, help_text: str) -> Action:
    session = context.session
    return Action(
        name,
        label,
        lambda: session.send(command),
        is_enabled=lambda: session.stage in ("running", "paused"),
        help=help_text,
    )


def _page_action(context: Context, page: PageSpec) -> Action:
    return Action(f"page_{page.key}", page.title, lambda: context.navigation.open(page.key), page_shortcut(page))


def open_finder(context: Context) -> Finder:
    """Open the search window; one that is already open is closed."""
    for old in [w for w in context.root.winfo_children() if isinstance(w, Finder)]:
        old.close()
    return Finder(context)


def _find(context: Context) -> None:
    open_finder(context)


def _find_preset(context: Context) -> None:
    open_preset_list(context, context.documents.open_preset)


def _edit_captions(context: Context) -> None:
    # Imported here: the editor needs NumPy, which the window is drawn without.
    from ui.editors.captions.opening import open_caption_editor

    open_caption_editor(context)


def _fit(context: Context) -> None:
    open_fit(context)


def _probe(context: Context) -> None:
    # Imported here: it shows plots with Pillow, which the window is drawn without.
    from ui.editors.probe import open_probe

    open_probe(context)


def _differences(context: Context) -> None:
    open_differences(context)


def _json(context: Context) -> None:
    open_json_view(context)


def _first_steps(context: Context) -> None:
    context.preferences.change(first_steps=CHOOSING)


def _undo(context: Context) -> None:
    context.notify("Undone." if context.form.undo() else "Nothing to undo.")


def _redo(context: Context) -> None:
    context.notify("Redone." if context.form.redo() else "Nothing to redo.")


def _open_run_folder(context: Context) -> None:
    started = context.session.state.started
    if started is not None:
        context.interaction.open_path(Path(started.run_dir))
