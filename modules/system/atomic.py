"""Atomic writes: after a crash there is the old file or the new one, never a partial one.

Everything is written next to its destination under a temporary name, flushed to the disk, and renamed. A rename
within one folder is atomic on every file system we run on. An error names the destination, not the temporary name.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from modules.system.file_errors import UnconfirmedError, name_destination
from modules.system.leftovers import put_back, sweep_once, temporary_path

# Exchanging two names in one step, which Linux and macOS can do and Python has no function for.
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2  # of renameat2 on Linux
_RENAME_SWAP = 2  # of renamex_np on macOS
_CHUNK_BYTES = 1 << 23
_NOT_SUPPORTED = {errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP}


def exchange(one: Path, other: Path) -> bool:
    """Exchange what two existing names of a folder refer to, atomically.

    Returns False, with nothing changed, if the system or the file system cannot do that (Windows, some network
    drives). Raises OSError.
    """
    if sys.platform == "win32":
        return False
    import ctypes  # here: the window, which opens in half a second, exchanges nothing then

    libc = ctypes.CDLL(None, use_errno=True)
    names = os.fsencode(one), os.fsencode(other)
    try:
        if sys.platform == "darwin":
            failed = libc.renamex_np(*names, _RENAME_SWAP)
        else:
            failed = libc.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE)
    except AttributeError:  # a C library without the function
        return False
    if not failed:
        return True
    number = ctypes.get_errno()
    if number in _NOT_SUPPORTED:
        return False
    raise OSError(number, os.strerror(number), str(other))


@contextmanager
def atomic_file(destination: Path, *, follows_link: bool = False, mode: int | None = None) -> Iterator[Path]:
    """Yield a temporary path next to `destination`; on success it replaces the destination, on error it is removed.

    Creates missing parent folders. The file has the permissions `mode`, or the permissions of the file that it
    replaces. A link is replaced by the file, unless `follows_link`: then the file that the link leads to is replaced,
    which is for files that the user has named, not for links in folders that others may have made. Raises OSError, and
    UnconfirmedError if the file is in its place but may be lost in a power failure.
    """
    place = destination.resolve() if follows_link and destination.is_symlink() else destination
    make_folder(place.parent)
    sweep_once(place.parent)
    temporary = temporary_path(place)
    try:
        with _naming(destination, temporary):
            mode = _mode_of(place) if mode is None else mode
            if mode is not None and not mode & stat.S_IROTH:  # private from the first byte on
                os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode | stat.S_IRUSR | stat.S_IWUSR))
            yield temporary
            _flush_file(temporary)
            if mode is not None:
                with suppress(OSError):  # some drives have no permissions
                    temporary.chmod(mode)
            temporary.replace(place)
        _confirm(place)
    finally:
        remove_quietly(temporary)


@contextmanager
def atomic_folder(destination: Path) -> Iterator[Path]:
    """Yield a temporary folder next to `destination`; on success it takes its place, on error it is removed.

    An existing destination is exchanged with it in one step. Where the system cannot do that, it is moved aside first,
    and moved back if the rename fails; if the program dies between the two, `put_back` and the next writer in its
    folder move it back. Raises as `atomic_file`.
    """
    make_folder(destination.parent)
    sweep_once(destination.parent)
    put_back(destination)
    temporary, is_in_place = temporary_path(destination), False
    try:
        with _naming(destination, temporary):
            temporary.mkdir()
            yield temporary
            for file in temporary.rglob("*"):
                if file.is_file():
                    _flush_file(file)
                elif file.is_dir():
                    flush_folder(file)
            flush_folder(temporary)
            old, is_in_place = _swap_folder(temporary, destination), True
        _confirm(destination)  # before the old one is removed: in a power failure it may get its name back
        if old is not None:
            remove_quietly(old)
    finally:
        if not is_in_place:
            remove_quietly(temporary)


def write_text(destination: Path, text: str, *, follows_link: bool = False) -> None:
    """Write UTF-8 text atomically, as `atomic_file` does.

    What UTF-8 cannot encode, as in file names that are not valid UTF-8, is escaped; in JSON that is read back as it is.
    """
    with atomic_file(destination, follows_link=follows_link) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace", newline="\n")


def write_bytes(destination: Path, content: bytes) -> None:
    """Write bytes atomically."""
    with atomic_file(destination) as temporary:
        temporary.write_bytes(content)


def copy_file(source: Path, destination: Path, on_bytes: Callable[[int], object] | None = None) -> None:
    """Copy a file atomically. Raises OSError.

    `on_bytes` is called with the bytes of each chunk that has been copied, and may raise to stop the copy.
    """
    with atomic_file(destination) as temporary:
        if on_bytes is None:
            shutil.copyfile(source, temporary)
            return
        with source.open("rb") as read, temporary.open("wb") as written:
            while chunk := read.read(_CHUNK_BYTES):
                written.write(chunk)
                on_bytes(len(chunk))


def copy_folder(source: Path, destination: Path) -> None:
    """Copy a folder with all in it atomically. Raises OSError, which names the file."""
    with atomic_folder(destination) as temporary:
        _copy_into(source, temporary)


def make_folder(folder: Path) -> None:
    """Create a folder and its missing parents, and flush their names: files in a folder whose name is lost are lost."""
    if folder.is_dir():
        return
    if folder.parent != folder:
        make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    flush_folder(folder.parent)


def remove_folder(folder: Path) -> None:
    """Remove a folder with all in it: it has lost its name before the first file goes, so none is ever half there.

    Raises OSError if it cannot be renamed. What cannot be removed then has a temporary name and is removed later.
    """
    temporary = temporary_path(folder)
    with _naming(folder, temporary):
        folder.rename(temporary)
    flush_folder(temporary.parent)
    remove_quietly(temporary)


def remove_quietly(path: Path) -> None:
    """Remove a file, a link, or a folder with all in it, if it is there; what cannot be removed stays."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def flush_folder(folder: Path) -> None:
    """Flush a folder's entries to the disk, where the system supports it (Windows and some network drives do not)."""
    if sys.platform == "win32":
        return
    try:
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EACCES):
            error.filename = error.filename or str(folder)
            raise


def _swap_folder(temporary: Path, destination: Path) -> Path | None:
    """Put a folder in its place and return where the old one is, if there was one."""
    if not os.path.lexists(destination):
        temporary.rename(destination)
        return None
    if exchange(temporary, destination):
        return temporary
    aside = temporary_path(destination, is_old=True)
    destination.rename(aside)
    try:
        temporary.rename(destination)
    except BaseException:
        aside.rename(destination)
        raise
    return aside


def _copy_into(source: Path, destination: Path) -> None:
    for place in sorted(source.iterdir()):
        copy = destination / place.name
        if place.is_dir():
            copy.mkdir()
            _copy_into(place, copy)
        else:
            with _naming(copy, copy):
                shutil.copyfile(place, copy)


@contextmanager
def _naming(destination: Path, temporary: Path) -> Iterator[None]:
    """Let errors name the destination, which the user knows."""
    try:
        yield
    except OSError as error:
        raise name_destination(error, destination, temporary) from error.__cause__


def _confirm(destination: Path) -> None:
    """Flush the new name. Raises UnconfirmedError: the file is there all the same."""
    try:
        flush_folder(destination.parent)
    except OSError as error:
        raise UnconfirmedError(error.errno, error.strerror, str(destination)) from error


def _mode_of(file: Path) -> int | None:
    """Return the permissions of an existing file."""
    try:
        status = file.stat(follow_symlinks=False)
    except OSError:
        return None
    return stat.S_IMODE(status.st_mode) if stat.S_ISREG(status.st_mode) else None


def _flush_file(file: Path) -> None:
    with file.open("rb+") as handle:
        os.fsync(handle.fileno())
