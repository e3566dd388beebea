"""The commands that fix a problem on this machine, for its package manager."""

import os
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

START = r".\start-ui.bat" if sys.platform == "win32" else "./start-ui.sh"
DOWNLOADS = "https://www.python.org/downloads/"

_MANAGERS = ("apt-get", "dnf", "pacman", "zypper", "brew")
_INSTALL = {
    "apt-get": "apt-get install",
    "dnf": "dnf install",
    "pacman": "pacman -S",
    "zypper": "zypper install",
    "brew": "brew install",
}
_TKINTER = {
    "apt-get": "python3{dotted}-tk",
    "dnf": "python3{dotted}-tkinter",
    "pacman": "tk",
    "zypper": "python3{minor}-tk",
    "brew": "python-tk@3{dotted}",
}
_TK_HEADERS = {"apt-get": "tk-dev", "dnf": "tk-devel", "pacman": "tk", "zypper": "tk-devel", "brew": "tcl-tk"}
_VENV = {
    "apt-get": "python3{dotted}-venv",
    "dnf": "python3{dotted}",
    "pacman": "python",
    "zypper": "python3{minor}",
    "brew": "python@3{dotted}",
}
_XVFB = {
    "apt-get": "xvfb",
    "dnf": "xorg-x11-server-Xvfb",
    "pacman": "xorg-server-xvfb",
    "zypper": "xorg-x11-server-Xvfb",
    "brew": "--cask xquartz",
}


class Machine(NamedTuple):
    """The package manager, and whether this process is root: both decide the command."""

    manager: str | None
    is_root: bool

    @classmethod
    def here(cls, which: Callable[[str], str | None] = shutil.which) -> "Machine":
        """The machine this runs on."""
        manager = next((name for name in _MANAGERS if which(name)), None)
        return cls(manager, hasattr(os, "geteuid") and os.geteuid() == 0)

    def install(self, packages: dict[str, str], version: tuple[int, int] | None = None) -> str | None:
        """The command that installs one package; None without a known package manager."""
        if self.manager is None:
            return None
        dotted, minor = (f".{version[1]}", str(version[1])) if version else ("", "")
        package = packages[self.manager].format(dotted=dotted, minor=minor)
        sudo = "" if self.is_root or self.manager == "brew" else "sudo "
        return f"{sudo}{_INSTALL[self.manager]} {package}"


def quote(path: Path | str) -> str:
    """The path quoted for a command line."""
    text = str(path)
    if sys.platform == "win32":
        return f'"{text}"' if " " in text else text
    return shlex.quote(text)


def tkinter_command(machine: Machine, python: Path, version: tuple[int, int], conda: Path | None) -> str:
    """The command that adds tkinter to this Python; `conda` is the prefix of a conda environment."""
    if conda is not None:
        return f"conda install -p {quote(conda)} tk"
    if ".pyenv" in python.parts:
        headers = machine.install(_TK_HEADERS)
        rebuild = f"pyenv install --force 3.{version[1]}"
        return f"{headers} && {rebuild}" if headers else rebuild
    command = machine.install(_TKINTER, None if _is_default(python, version) else version)
    return command or f"(get Python 3.{version[1]} with Tcl/Tk from {DOWNLOADS})"


def venv_command(machine: Machine, python: Path, version: tuple[int, int]) -> str:
    """The command that adds venv and ensurepip to this Python."""
    command = machine.install(_VENV, None if _is_default(python, version) else version)
    return command or f"(get Python 3.{version[1]} from {DOWNLOADS})"


def xvfb_command(machine: Machine) -> str:
    """The command that installs a virtual display."""
    return machine.install(_XVFB) or "(install Xvfb from your system's packages)"


def _is_default(python: Path, version: tuple[int, int]) -> bool:
    """Whether this is the distribution's default python3, whose packages have no version in their names."""
    system = Path("/usr/bin/python3")
    return python in (system, Path(f"/usr/bin/python3.{version[1]}")) and system.resolve().name in (
        "python3",
        f"python3.{version[1]}",
    )
