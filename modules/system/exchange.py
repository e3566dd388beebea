"""Exchanging two names in one step, which Linux and macOS can do and Python has no function for."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2  # of renameat2 on Linux
_RENAME_SWAP = 2  # of renamex_np on macOS
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
