"""The table of all user actions with their shortcuts, and what features open of each other.

Windows and the commands of runs are imported when they are used first: together they would make the program's start a
third longer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modules.config.records import why_unused
from modules.system.factories import load_factory
from ui.app.catalogue import PAGES, page_shortcut
from ui.features.remote.model import Machines
from ui.features.run.model import Starter
from ui.forms.context import Context, FeatureLinks
from ui.forms.setting_pages import SIMPLE, PageSpec
from ui.loop.run_session import RunSession
from ui.widgets.actions import Action

if TYPE_CHECKING:
    from trainer.run_folder.backup import BackupInfo


def _opener(context: Context, place: str, *arguments: Any) -> Callable[[], None]:
    """Return the function that opens a window of a feature, which is imported only then."""
    return lambda: load_factory(f"ui.features.{place}")(context, *arguments)


def add_actions(
    context: Context,
    *,
    open_save_menu: Callable[[], None],
    open_preset_menu: Callable[[], None],
    close: Callable[[], None],
) -> None:
    """Add all other actions to the context's table."""
    documents, starter, session = context.documents, context.models.of(Starter), context.session

    opener_of = partial(_opener, context)
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
            opener_of("presets.window:PresetList", documents.open_preset),
            "Ctrl+Shift+P",
            help="List all presets with what they are for, and search them",
        ),
        Action("demo", "Load the demo", documents.open_demo),
        Action("json", "Config as JSON…", opener_of("config_views.json_window:JsonView"), "Ctrl+J", help=_JSON_HELP),
        Action(
            "differences",
            "Differences…",
            opener_of("config_views.differences:Differences"),
            "Ctrl+D",
            help=_DIFFERENCES_HELP,
        ),
        Action("undo", "Undo", lambda: _undo(context), "Ctrl+Z"),
        Action("redo", "Redo", lambda: _redo(context), "Ctrl+Shift+Z"),
        Action("start", "Start", starter.start, "F5", lambda: starter.can_start, "Check the settings, then train"),
        Action("stop", "Stop", session.stop, "Shift+F5", lambda: session.can_stop, _STOP_HELP),
        Action(
            "resume",
            "Resume run",
            starter.resume,
            "F6",
            lambda: starter.can_resume,
            "Resume the last run from its newest backup",
            "No run of this workspace was stopped, or another one is active.",
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
        Action(
            "find",
            "Find…",
            opener_of("search.finder:Finder"),
            "Ctrl+F",
            help="Find a setting, a command or a page",
        ),
        Action(
            "captions",
            "Captions and masks…",
            opener_of("captions.opening:open_caption_editor"),
            "Ctrl+T",
            help=_CAPTIONS_HELP,
        ),
        Action(
            "all_captions",
            "All captions…",
            opener_of("captions.opening:open_all_captions"),
            help=_ALL_CAPTIONS_HELP,
        ),
        Action(
            "auto_captions",
            "Automatic captions…",
            opener_of("captions.opening:open_automatic_captions"),
            help=_AUTO_HELP,
        ),
        Action(
            "other_family",
            "Train this dataset on…",
            opener_of("other_family:open_other_family"),
            help=_OTHER_FAMILY_HELP,
        ),
        Action(
            "base_model",
            "Base model…",
            lambda: context.links.choose_base_model(context),
            help=_BASE_MODEL_HELP,
        ),
        Action("fit", "Fit to my card…", opener_of("fit:FitWindow"), help=_FIT_HELP),
        Action("length", "How long to train…", opener_of("length:LengthWindow"), help=_LENGTH_HELP),
        Action(
            "which_method",
            "Which method?",
            opener_of("rewards.which_method:WhichMethod"),
            is_enabled=lambda: not why_unused(context.form.config, "training.method"),  # a VAE has a method of its own
            help=_WHICH_METHOD_HELP,
        ),
        Action("probe", "Probe…", opener_of("probe:open_probe"), help=_PROBE_HELP),
        Action("self_test", "Self-test…", opener_of("self_test:open_self_test"), help=_SELF_TEST_HELP),
        Action("tokens", "Tokens…", opener_of("tokens:open_secrets"), help=_TOKENS_HELP),
        Action("machines", "Machines…", opener_of("remote.window:MachinesWindow"), help=_MACHINES_HELP),
        Action("web_page", "Page in the browser…", opener_of("web.window:WebWindow"), help=_WEB_HELP),
        Action("quit", "Quit", close, "Ctrl+Q"),
        Action(
            "open_run_folder",
            "Open folder",
            lambda: _open_run_folder(context),
            is_enabled=lambda: session.started is not None,
            help="Open this run's folder",
            needs=_NEEDS_A_RUN,
        ),
        Action("simple_view", "Simple view", lambda: _change_view(context), "Ctrl+B", help=_VIEW_HELP),
        *(_command_action(context, *row) for row in _RUN_COMMANDS),
        *(_page_action(context, page) for page in PAGES),
    )
    starter.offer_wanted.subscribe(context.actions.run)


_WHICH_METHOD_HELP = "Choose a training method by what you have: images, pairs, a score, or your own eye"
_LOAD_HELP = "Load a config (Darkroom, OneTrainer, kohya or ai-toolkit), or the settings in a LoRA file"
_IMPORT_HELP = "Import a folder of presets, such as OneTrainer's training_presets"
_DIFFERENCES_HELP = "List the settings that differ from the loaded file, a preset or the defaults"
_JSON_HELP = "Show the config as JSON, copy it, or load one from the clipboard"
_CAPTIONS_HELP = "Edit captions and masks of a concept or a folder, or write them with a model"
_ALL_CAPTIONS_HELP = "All captions of a concept in one grid: edit, search, find and replace, trigger word"
_AUTO_HELP = "Let a model write the captions of a concept or a folder: sentences or tags"
_OTHER_FAMILY_HELP = "Take the concepts, prompts and length of this config to another model family, with a preset of it"
_BASE_MODEL_HELP = "Choose a model file or folder, one that other programs on this computer have, or a download"
_FIT_HELP = "Find the fastest settings whose memory fits the card, and what each costs"
_LENGTH_HELP = "Set the epochs from the number of images and from what they show"
_PROBE_HELP = "Measure the batch size and the learning rate on a few real steps"
_VIEW_HELP = "One page with what a LoRA needs, or all pages. No setting is lost"
_SELF_TEST_HELP = "Nothing is learned? Find out whether the weights, the settings or the program are wrong."
_TOKENS_HELP = "Manage tokens and passwords, for example for Hugging Face"
_MACHINES_HELP = "Train on another computer or a rented one over SSH: add it, rent one, check it"
_WEB_HELP = "Show the runs in a browser, also on a phone: progress, samples, Stop, the queue, choices"
_FREE_HELP = "Pause training and free the card's memory for other programs; Continue brings it back, bit for bit"
_STOP_HELP = "Stop the run; its backup can be resumed"
_NEEDS_A_RUN = "No run has started here yet. Earlier ones are on the page Runs & queue."
_NEEDS_TRAINING = "Only while a run trains."
_RUN_COMMANDS: tuple[tuple[str, str, str, str], ...] = (
    ("sample_now", "Sample now", "SampleNow", "Generate samples after the current step"),
    ("validate_now", "Validate now", "ValidateNow", "Validate after the current step, with the validation images"),
    ("backup_now", "Back up now", "BackupNow", "Write a backup after the current step"),
    ("save_now", "Save now", "SaveNow", "Save the model after the current step"),
)


def _command_action(context: Context, name: str, label: str, command: str, help_text: str) -> Action:
    session = context.session

    def send() -> None:
        session.send(load_factory(f"trainer.commands:{command}")())
        if session.stage == "paused":
            context.notify(f"{label}: once the run continues.")

    return Action(
        name,
        label,
        send,
        is_enabled=lambda: session.stage in ("running", "paused") and (name != "validate_now" or _validates(session)),
        help=help_text,
        needs="Only while a run trains, and has validation images." if name == "validate_now" else _NEEDS_TRAINING,
    )


def _validates(session: RunSession) -> bool:
    """Return whether the current run has validation images, as far as its settings are known."""
    return session.config is None or any(c.enabled and c.dataset_kind == "validation" for c in session.config.concepts)


def _page_action(context: Context, page: PageSpec) -> Action:
    return Action(f"page_{page.key}", page.title, lambda: context.navigation.open(page.key), page_shortcut(page))


def show_view(context: Context, *, is_simple: bool, show_advanced: bool) -> None:
    """Show the simple view, or the full one with usual or all settings, and a page that the view has."""
    context.preferences.change(is_simple=is_simple, show_advanced=show_advanced)
    if is_simple or context.navigation.page == SIMPLE:
        context.navigation.open(SIMPLE if is_simple else "training")


def _change_view(context: Context) -> None:
    now = context.preferences.now
    show_view(context, is_simple=not now.is_simple, show_advanced=now.show_advanced)


def _undo(context: Context) -> None:
    context.notify("Undone." if context.form.undo() else "Nothing to undo.")


def _redo(context: Context) -> None:
    context.notify("Redone." if context.form.redo() else "Nothing to redo.")


def _open_run_folder(context: Context) -> None:
    started = context.session.started
    if started is not None:
        context.interaction.open_path(Path(started.run_dir))


WINDOW_MENU = ("keys", "about", "bundle", "profile")


def add_tool_actions(
    context: Context, *, open_tensorboard: Callable[[], None], log_file: Callable[[], Path | None]
) -> None:
    """Add the actions of tools and of the window's menu to the context's table."""
    session = context.session

    opener_of = partial(_opener, context)
    context.actions.add(
        Action("tensorboard", "TensorBoard", open_tensorboard, help=_TENSORBOARD_HELP),
        Action(
            "profile",
            "Profile ten steps",
            lambda: _profile(context),
            is_enabled=lambda: session.stage == "running",
            help=_PROFILE_HELP,
            needs=_NEEDS_TRAINING,
        ),
        Action(
            "report_images",
            "Compare images",
            lambda: _compare_images(context),
            is_enabled=lambda: (
                session.stage == "running" or (context.starter.can_start and session.started is not None)
            ),
            help=_REPORT_HELP,
            needs=_NEEDS_IMAGES,
        ),
        Action("bundle", "Debug bundle…", lambda: opener_of("about:BundleWindow", log_file())(), help=_BUNDLE_HELP),
        Action("manage_presets", "Manage presets…", opener_of("presets.window:Presets"), help=_PRESETS_HELP),
        Action("keys", "Keys…", opener_of("about:Keys"), "F1", help="List every key"),
        *(
            Action(
                f"appearance_{mode}",
                mode.capitalize(),
                lambda mode=mode: context.preferences.change(appearance=mode),  # type: ignore[misc]
                help=f"{mode.capitalize()} window colors",
            )
            for mode in ("dark", "light")
        ),
        Action("about", "About Darkroom…", opener_of("about:About"), help="Version, licence and folders"),
    )


_TENSORBOARD_HELP = "Serve the runs of the workspace on this machine and open them in the browser"
_PROFILE_HELP = "Measure where the time of the next steps goes; writes a trace and tables to the run's profile folder"


def _compare_images(context: Context) -> None:
    """Report on the images of the run at its current step, or of the run that has ended with its newest backup."""
    session = context.session
    started = session.started
    if session.stage == "running":
        session.send(load_factory("trainer.commands:ReportNow")())
    elif started is not None:
        list_backups = load_factory("trainer.run_folder.backup:list_backups")
        context.pump.background.run(partial(list_backups, Path(started.run_dir)), partial(_compare_with_last, context))


def _compare_with_last(context: Context, backups: Sequence[BackupInfo]) -> None:
    if backups:
        context.starter.compare_images(backups[-1])
    else:
        context.notify("Images are compared with the model of a backup, and this computer has no backup of this run.")


_REPORT_HELP = "Measure the loss of every image with the model of this run, and show which do not fit the others"
_NEEDS_IMAGES = (
    "Only while a run trains, or after it. For an earlier one: More › Compare its images, on the page Runs & queue."
)
_PRESETS_HELP = "List, describe, rename, duplicate, compare and delete presets"
_BUNDLE_HELP = "Collect settings, versions and logs for a bug report, without secrets"


def _profile(context: Context) -> None:
    context.session.send(load_factory("trainer.commands:ProfileNow")())
    context.notify("Profiling takes the next 22 steps: of times, then of memory. The log shows where the result is.")


_BASE_MODEL_MODULE = "ui.features.base_model.window"
_CAPTIONS_MODULE, _DIFFERENCES_MODULE = "ui.features.captions.opening", "ui.features.config_views.differences"


def make_feature_links(
    context: Callable[[], Context],
    *,
    show_run: Callable[[Path], None],
    follow_run: Callable[..., None],
    try_result: Callable[[Any], None],
    show_losses: Callable[[Sequence[Path]], None],
) -> FeatureLinks:
    """Return the links; `context()` is the window's, which has them."""
    return FeatureLinks(
        edit_captions=lambda number, image: load_factory(f"{_CAPTIONS_MODULE}:open_caption_editor")(
            context(), number, image
        ),
        show_losses=show_losses,
        write_captions=lambda concept: load_factory(f"{_CAPTIONS_MODULE}:open_automatic_captions")(context(), concept),
        choose_base_model=lambda asking: load_factory(f"{_BASE_MODEL_MODULE}:BaseModelWindow")(
            asking, offers_family=asking.form is context().form
        ),
        install_packages=lambda packages, done: load_factory("ui.features.packages:open_install")(
            context(), packages, done
        ),
        enter_secret=lambda name: load_factory("ui.features.tokens:open_secrets")(context(), name),
        train_on=lambda family, settings: load_factory("ui.features.other_family:open_other_family")(
            context(), family, settings
        ),
        try_result=try_result,
        show_run=show_run,
        follow_run=follow_run,
        places=lambda: context().models.of(Machines).places,
        compare_checkpoints=lambda run_dirs: load_factory("ui.features.checkpoints.window:open_checkpoints")(
            context(), run_dirs
        ),
        show_run_changes=lambda: load_factory(f"{_DIFFERENCES_MODULE}:Differences")(context(), "run"),
        add_presets=lambda menu, presets, choose: load_factory("ui.features.presets.menu:add_presets")(
            menu, context(), presets, choose
        ),
    )
