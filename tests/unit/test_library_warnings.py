"""Libraries' own warnings do not reach the user as if they were the program's."""

from __future__ import annotations

import subprocess
import sys

from modules.system.paths import PROGRAM_ROOT


def test_bitsandbytes_is_imported_without_a_word() -> None:
    code = (
        "from modules.system.library_warnings import hide_library_warnings; hide_library_warnings(); "
        "import bitsandbytes"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=PROGRAM_ROOT, capture_output=True, text=True, check=True)
    assert done.stdout + done.stderr == ""
