"""The actions beside training: TensorBoard, profiling, the debug bundle, the preset manager, About and keys."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from modules.system.factories import load_factory
from trainer.commands import ProfileNow
from ui.forms.context import Context
from ui.widgets.actions import Action
from ui.widgets.dialog import Window

WINDOW_MENU = ("keys", "about", "bundle")


def add_tool_actions(
    context: Context, *, open_tensorboard: Callable[[], None], log_file: Callable[[], Path | None]
) -> None:
    """Add them to the context's table."""
    session = context.session

    def opens(place: str, *facts: Callable[[], Any]) -> Callable[[], None]:
        return lambda: _only(load_factory(f"ui.features.{place}")(context, *(fact() for fact in facts)))

    context.actions.add(
        Action("tensorboard", "TensorBoard", open_tensorboard, help=_TENSORBOARD_HELP),
        Action(
            "profile",
            "Profile ten steps",
            lambda: _profile(context),
            is_enabled=lambda: session.stage == "running",
            help=_PROFILE_HELP,
        ),
        Action("bundle", "Debug bundle…", opens("about.bundle:BundleWindow", log_file), help=_BUNDLE_HELP),
        Action("manage_presets", "Manage presets…", opens("presets.window:Presets"), help=_PRESETS_HELP),
        Action("keys", "Keys…", opens("about.window:Keys"), "F1", help="List every key"),
        Action("about", "About Darkroom…", opens("about.window:About"), help="Version, licence and folders"),
    )


_TENSORBOARD_HELP = "Serve the runs of the workspace on this machine and open them in the browser"
_PROFILE_HELP = "Measure where the time of the next steps goes; writes a trace and tables to the run's profile folder"
_PRESETS_HELP = "List, describe, rename, duplicate, compare and delete presets"
_BUNDLE_HELP = "Collect settings, versions and logs for a bug report, without secrets"


def _profile(context: Context) -> None:
    context.session.send(ProfileNow())
    context.notify("The next 22 steps are profiled; the log shows where the result is.")


def _only(window: Window) -> None:
    """Close an older window of the same kind."""
    for old in [w for w in window.master.winfo_children() if type(w) is type(window) and w is not window]:
        if isinstance(old, Window):
            old.close()
