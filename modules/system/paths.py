"""The folders of the program and of the user's files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path, PureWindowsPath

import platformdirs

PROGRAM_ROOT = Path(__file__).resolve().parents[2]
_APP = "darkroom"
_WINDOWS_DEVICES = {
    *("CON", "PRN", "AUX", "NUL", "CONIN$", "CONOUT$"),
    *(f"{kind}{n}" for kind in ("COM", "LPT") for n in "0123456789¹²³"),
}

_DRIVE = re.compile(r"[A-Za-z]:(?=[\\/])")  # of Windows
_NOT_IN_NAMES = '<>:"/\\|?*'
_MAX_PREFIX_BYTES = 180  # most systems allow 255, and the step and a temporary mark are added


def from_root(path: str | Path) -> Path:
    """Return a config's path as an absolute one: relative paths are relative to the program's root."""
    return (PROGRAM_ROOT / _expand(path)).absolute()


def as_config_path(path: Path) -> str:
    """Return a path as stored in a config: relative inside the program's folder, else absolute."""
    absolute = path.absolute()
    if absolute.is_relative_to(PROGRAM_ROOT) and absolute != PROGRAM_ROOT:
        return absolute.relative_to(PROGRAM_ROOT).as_posix()
    return str(absolute)


def from_caller(path: str | Path) -> Path:
    """Return a command line's path as an absolute one: relative paths are relative to the caller's folder.

    The launcher changes into the program's root and leaves the caller's folder in DARKROOM_CALLER_DIR.
    """
    expanded = _expand(path)
    if expanded.is_absolute():  # also if the caller's folder has been removed
        return expanded
    return (Path(os.environ.get("DARKROOM_CALLER_DIR") or Path.cwd()) / expanded).absolute()


def folder_for_images(paths: Iterable[str]) -> Path:
    """Return where to look for more images: next to the last of these paths whose folder exists, else in the user's
    folder of images, else at home.
    """
    siblings = (from_root(path).parent for path in reversed([*paths]) if path)
    usual = (platformdirs.user_pictures_path(), Path.home())
    return next((folder for folder in (*siblings, *usual) if folder.is_dir()), PROGRAM_ROOT)


def user_presets_dir() -> Path:
    """Return the folder of the user's presets, in the platform's config folder."""
    return platformdirs.user_config_path(_APP, appauthor=False) / "presets"


def secrets_file() -> Path:
    """Return the file of tokens and passwords, in the platform's config folder; configs never contain any."""
    return platformdirs.user_config_path(_APP, appauthor=False) / "secrets.json"


def approvals_file() -> Path:
    """Return the file that stores approvals of the user's code, in the platform's config folder."""
    return platformdirs.user_config_path(_APP, appauthor=False) / "approved_code.json"


def session_file() -> Path:
    """Return the file that stores the window's last session."""
    return platformdirs.user_state_path(_APP, appauthor=False) / "session.json"


def queue_file() -> Path:
    """Return the file of the queue of runs, which all windows and command lines of the user share."""
    return platformdirs.user_state_path(_APP, appauthor=False) / "queue.json"


def remotes_file() -> Path:
    """Return the file of the machines that runs are trained on over SSH, in the platform's config folder."""
    return platformdirs.user_config_path(_APP, appauthor=False) / "remotes.json"


def known_hosts_file() -> Path:
    """Return the file of the host keys of these machines that the user has accepted."""
    return platformdirs.user_config_path(_APP, appauthor=False) / "known_hosts"


def ssh_key_file() -> Path:
    """Return the file of the private SSH key that Darkroom makes for a user who has none."""
    return platformdirs.user_config_path(_APP, appauthor=False) / "id_ed25519"


def wheels_dir(machine: str) -> Path:
    """Return the folder of the packages that are sent to a machine without a package index."""
    return platformdirs.user_cache_path(_APP, appauthor=False) / "wheels" / machine


def models_dir() -> Path:
    """Return the folder of downloaded models that are not in the cache of Hugging Face."""
    return platformdirs.user_data_path(_APP, appauthor=False) / "models"


def replaced_files_dir() -> Path:
    """Return the folder with copies of the files that automatic captions and masks replaced."""
    return platformdirs.user_data_path(_APP, appauthor=False) / "replaced"


def machine_choices_file() -> Path:
    """Return the file of the best numbers of threads that were measured on this machine."""
    return platformdirs.user_data_path(_APP, appauthor=False) / "machine_choices.json"


def log_dir() -> Path:
    """Return the folder of the window's logs."""
    return platformdirs.user_log_path(_APP, appauthor=False)


def recordings_dir() -> Path:
    """Return the folder of the recorded passes of models, for the memory estimate, in the platform's cache folder."""
    return platformdirs.user_cache_path(_APP, appauthor=False) / "recordings"


def thumbnails_dir() -> Path:
    """Return the folder of the window's cached thumbnails, in the platform's cache folder."""
    return platformdirs.user_cache_path(_APP, appauthor=False) / "thumbnails"


def _expand(path: str | Path) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError:  # no user of that name has a home here: then "~name" is an ordinary name
        return Path(path)


def safe_name(text: str, *, max_chars: int = 60) -> str:
    """Return text as a file name valid on every system: letters, digits, space, `._-`, no dot at either end."""
    cleaned = re.sub(r"[^\w .-]+", "_", text, flags=re.UNICODE).strip(" .")
    if _is_device(cleaned):
        cleaned = f"_{cleaned}"
    return cleaned[:max_chars].strip(" .") or "unnamed"


def reason_if_no_name(text: str) -> str:
    """Return why a text cannot be the beginning of a file's name on every system; empty if it can."""
    if bad := _bad_character(text):
        return bad
    if not text.strip(" .") or text != text.lstrip():
        return "it has no letters or digits" if not text.strip(" .") else "it begins with a space"
    if _is_device(text):
        return "it is the name of a device on Windows"
    return "it is too long" if len(text.encode("utf-8", errors="replace")) > _MAX_PREFIX_BYTES else ""


def reason_if_of_other_system(path: str, *, is_windows: bool = os.name == "nt") -> str:
    """Return why a config's path is none on this system, although it may be one on another; empty if it can be one.

    Elsewhere "C:\\runs" would become a file of that name in the program's folder. Windows writes "a:b" into a hidden
    part of the file "a", and "con.txt" to the console.
    """
    if not is_windows:
        if drive := _DRIVE.match(path.strip()):
            return f"{drive[0]} is a drive of Windows, which this machine does not have"
        return "folders are separated by / here, not by \\" if "\\" in path else ""
    pure = PureWindowsPath(path)
    for name in pure.parts[1:] if pure.anchor else pure.parts:
        if bad := _bad_character(name):
            return f"{bad}, which no name on Windows does"
        if _is_device(name):
            return f"{name} is the name of a device on Windows"
    return ""


def _bad_character(name: str) -> str:
    """Return which character a name contains that is not valid on every system; empty if there is none."""
    bad = next((char for char in name if char in _NOT_IN_NAMES or not char.isprintable()), "")
    return bad and (f"it contains {bad}" if bad.isprintable() else "it contains a control character")


def _is_device(name: str) -> bool:
    return name.partition(".")[0].strip().upper() in _WINDOWS_DEVICES
