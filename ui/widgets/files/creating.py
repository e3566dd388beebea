"""Creating a folder from the file dialog. No Tk."""

from __future__ import annotations

import errno
from pathlib import Path

from modules.system.errors import DarkroomError
from modules.system.paths import safe_name

_MAX_BYTES = 255  # of a name, on every usual file system
_RESERVED = '<>:"/\\|?*'


def create_folder(parent: Path, name: str) -> Path:
    """Create a folder in another and return it.

    Raises DarkroomError for a name that some system does not accept, one that is taken, and where nothing can be
    written.
    """
    wanted = name.strip()
    _check(wanted)
    folder = parent / wanted
    try:
        folder.mkdir()
    except FileExistsError:
        kind = "A folder" if folder.is_dir() else "A file"
        raise DarkroomError(f"{kind} named {wanted} is already in {parent}.", advice="Type another name.") from None
    except PermissionError:
        advice = "Choose a folder of your own, or ask the owner for access."
        raise DarkroomError(f"You have no permission to create a folder in {parent}.", advice=advice) from None
    except FileNotFoundError:
        raise DarkroomError(f"{parent} does not exist any more.", advice="Open another folder.") from None
    except OSError as error:
        raise DarkroomError(
            f"{wanted} could not be created in {parent}: {_reason(error)}.", advice=_ADVICE.get(error.errno or 0, "")
        ) from error
    return folder


def _check(name: str) -> None:
    if not name:
        raise DarkroomError("Type a name for the new folder.")
    if name in (".", ".."):
        raise DarkroomError(f"{name} stands for an existing folder.", advice="Type another name.")
    if bad := next((char for char in name if char in _RESERVED or not char.isprintable()), ""):
        shown = bad if bad.isprintable() else "a control character"
        raise DarkroomError(f"The name of a folder cannot contain {shown}.", advice="Leave it out.")
    if name.endswith("."):
        raise DarkroomError("The name of a folder cannot end with a dot on Windows.", advice="Leave it out.")
    if len(name.encode("utf-8")) > _MAX_BYTES:
        raise DarkroomError(f"The name is too long: at most {_MAX_BYTES} bytes.", advice="Type a shorter one.")
    if safe_name(name).startswith("_") and not name.startswith("_"):
        raise DarkroomError(f"{name} is the name of a device on Windows.", advice="Type another name.")


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


_ADVICE = {
    errno.ENOSPC: "Free some space or choose another disk.",
    errno.EROFS: "This disk is read-only. Choose another one.",
    errno.ENAMETOOLONG: "Type a shorter name.",
}
