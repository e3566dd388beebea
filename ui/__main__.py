"""`python -m ui [CONFIG]`: opens the window. Torch and the engine are never imported here."""

from __future__ import annotations

import signal
import sys
import tkinter as tk
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it without a traceback until the window is open

from modules.system.paths import from_caller
from modules.system.process_setup import (
    collection_off,
    hide_library_warnings,
    open_missing_streams,
    use_no_pydantic_plugins,
)

if TYPE_CHECKING:
    from ui.app.window import App


def main(arguments: Sequence[str], *, on_visible: Callable[[], None] | None = None) -> int:
    """Open the window with the given config file, or with the last session, and run it until it closes."""
    open_missing_streams()
    config = _config_in(arguments) if arguments else ""
    hide_library_warnings()
    use_no_pydantic_plugins()
    with collection_off():  # until the window is visible, which is a tenth faster
        app = _open_window(from_caller(config) if config else None)
        if app is None:
            return 1
        app.show(on_visible)
    from modules.system.allocator import use_growing_segments  # which reads the metadata of packages
    from ui.loop.pump import keep_interpreter_smooth

    use_growing_segments()
    keep_interpreter_smooth()
    app.run()
    return 0


def _config_in(arguments: Sequence[str]) -> str:
    """Return the config file that the arguments name; empty for the last session."""
    import argparse

    parser = argparse.ArgumentParser(prog="python -m ui", description="Opens Darkroom's window.")
    parser.add_argument("config", nargs="?", default="", help="a config file to open (default: the last session)")
    return str(parser.parse_args(arguments).config)


def _open_window(path: Path | None) -> App | None:
    """Return the window; None on a machine without a display, which is reported."""
    from ui.app.window import App

    try:
        return App(config_path=path)
    except tk.TclError as error:
        if "display" not in str(error):
            raise
        sys.stderr.write(
            f"Darkroom cannot open its window: {error}. On a machine without a display, run "
            "python -m trainer train CONFIG.\n"
        )
        return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
