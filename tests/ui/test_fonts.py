"""Fonts: what keeps them open, and that a second window does not truncate the files which the first one has mapped."""

from __future__ import annotations

import os
import subprocess
import sys
import tkinter as tk
from pathlib import Path

import pytest

from modules.system.paths import PROGRAM_ROOT
from ui.widgets.ctk import install_font


def test_a_font_in_use_keeps_its_content(tmp_path: Path) -> None:
    source, folder = tmp_path / "new.ttf", tmp_path / "fonts"
    folder.mkdir()
    source.write_bytes(b"new")
    installed = folder / "new.ttf"
    installed.write_bytes(b"older and longer")
    with installed.open("rb") as in_use:
        assert install_font(str(source), str(folder)) == str(installed)
        assert in_use.read() == b"older and longer"
    assert installed.read_bytes() == b"new"
    inode = installed.stat().st_ino
    install_font(str(source), str(folder))
    assert installed.stat().st_ino == inode
    assert [p.name for p in folder.iterdir()] == ["new.ttf"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="customtkinter copies its fonts on Linux only")
def test_a_second_start_leaves_the_fonts_alone(tmp_path: Path) -> None:
    def start() -> dict[str, tuple[int, int]]:
        environment = {**os.environ, "HOME": str(tmp_path)}
        subprocess.run(
            [sys.executable, "-c", "import ui.widgets.window"], cwd=PROGRAM_ROOT, env=environment, check=True
        )
        found = {path.name: path.stat() for path in (tmp_path / ".fonts").iterdir()}
        return {name: (status.st_ino, status.st_mtime_ns) for name, status in found.items()}

    first = start()
    assert any(name.startswith("Roboto") for name in first)
    assert start() == first


@pytest.mark.parametrize("kind", [tk.Label, tk.Button, tk.Menu, tk.Entry, tk.Text])
def test_the_font_that_a_new_widget_begins_with_stays_open(root: tk.Tk, kind: type[tk.Widget]) -> None:
    """Tk would close it when the widget gets its own font, and open it again for the next widget."""
    in_use = {str(child.cget("font")) for child in root.winfo_children()}
    assert str(kind(root).cget("font")) in in_use
