"""Libraries' own warnings do not reach the user as if they were the program's, and plugins are not searched."""

from __future__ import annotations

import subprocess
import sys

from modules.system.paths import PROGRAM_ROOT


def test_what_is_imported_says_nothing() -> None:
    code = (
        "from modules.system.process_setup import hide_library_warnings; hide_library_warnings(); "
        "import bitsandbytes, transformers; transformers.CLIPImageProcessor"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=PROGRAM_ROOT, capture_output=True, text=True, check=True)
    assert done.stdout + done.stderr == ""


def test_a_config_is_built_without_a_search_for_plugins() -> None:
    code = (
        "import importlib.metadata as m; m.entry_points = lambda **_: 1 / 0; "
        "from modules.system.process_setup import use_no_pydantic_plugins; use_no_pydantic_plugins(); "
        "from modules.config.schema import Config; Config()"
    )
    subprocess.run([sys.executable, "-c", code], cwd=PROGRAM_ROOT, check=True)
