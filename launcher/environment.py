"""Chooses the program's environment: the active one, otherwise `.venv` in the project's folder."""

import errno
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple

from launcher import marker
from launcher.fix_commands import START, quote
from launcher.interpreter import NEWEST, OLDEST, Interpreter, ask
from launcher.messages import Failure, Sentence

FOLDER = ".venv"
CONDA_NEW = "conda create -n darkroom python=3.12 tk && conda activate darkroom"
_VENV_BYTES = 60_000_000

Kind = Literal["venv", "conda", "project"]


class Environment(NamedTuple):
    """An environment that packages are installed into."""

    kind: Kind
    prefix: Path

    @property
    def python(self) -> Path:
        """The path of its interpreter, whether or not it exists."""
        if sys.platform == "win32":
            folder = self.prefix if self.kind == "conda" else self.prefix / "Scripts"
            return folder / "python.exe"
        return self.prefix / "bin" / "python"

    @property
    def leave_command(self) -> str:
        """The command to leave it, so that Darkroom creates its own."""
        return f"{'conda deactivate' if self.kind == 'conda' else 'deactivate'} && {START}"


def choose(root: Path, environ: Mapping[str, str]) -> Environment:
    """The active environment (the first on PATH if both kinds are active), otherwise the project's own."""
    active: list[Environment] = []
    if environ.get("VIRTUAL_ENV"):
        active.append(Environment("venv", Path(environ["VIRTUAL_ENV"])))
    if environ.get("CONDA_PREFIX"):
        active.append(Environment("conda", Path(environ["CONDA_PREFIX"])))
    project = Environment("project", root / FOLDER)
    if not active:
        return project
    search = environ.get("PATH", "").split(os.pathsep)
    places = [search.index(folder) if (folder := str(env.python.parent)) in search else len(search) for env in active]
    first = active[places.index(min(places))]
    return project if first.prefix.resolve() == project.prefix.resolve() else first


def running_environment(root: Path) -> Environment:
    """The environment of the Python that runs."""
    prefix = Path(sys.prefix)
    if prefix.resolve() == (root / FOLDER).resolve():
        return Environment("project", prefix)
    return Environment("conda" if (prefix / "conda-meta").is_dir() else "venv", prefix)


def check_active(env: Environment, interpreter: Interpreter | None) -> None:
    """Raise `Failure` if the active environment has no Python, or a version that Darkroom does not support."""
    if interpreter is None:
        conda = f"conda install -p {quote(env.prefix)} python=3.12 tk"
        command = conda if env.kind == "conda" else env.leave_command
        raise Failure(Sentence.ACTIVE_WITHOUT_PYTHON, kind=env.kind, prefix=env.prefix, command=command)
    if not interpreter.fits:
        raise Failure(
            Sentence.ACTIVE_WRONG_VERSION,
            kind=env.kind,
            prefix=env.prefix,
            version=interpreter.dotted,
            command=CONDA_NEW if env.kind == "conda" else env.leave_command,
        )


def why_unusable(env: Environment) -> str | None:
    """Return why the project's own environment cannot be used; None if it can.

    "" if it does not exist yet.
    """
    config = env.prefix / "pyvenv.cfg"
    if not env.prefix.exists() or not any(child.name != marker.LOCK for child in env.prefix.iterdir()):
        return ""
    if marker.stage(env.prefix) == "creating":
        return "it was not completed"
    if not config.is_file():
        raise Failure(
            Sentence.FOLDER_NOT_OURS,
            prefix=env.prefix,
            command=f"mv {quote(env.prefix)} {quote(f'{env.prefix}-old')}",
        )
    runs_itself = Path(sys.prefix) == env.prefix
    version = sys.version_info[:2] if runs_itself else _version(env)
    if version is None:
        return "its Python no longer exists"
    if not OLDEST <= version <= NEWEST:
        return f"it runs Python {version[0]}.{version[1]}"
    made_for = _made_for(config)
    if made_for is not None and made_for != version:
        return f"it was created for Python {made_for[0]}.{made_for[1]}, and Python is {version[0]}.{version[1]} now"
    return None


def create(env: Environment, base: Interpreter) -> None:
    """Create the project's environment again; everything in an older one except the lock is removed."""
    if shutil.disk_usage(env.prefix).free < _VENV_BYTES:
        raise disk_full_failure(env.prefix)
    marker.write(env.prefix, "creating")
    for child in env.prefix.iterdir():
        if child.name not in (marker.LOCK, marker.MARKER):
            shutil.rmtree(child) if child.is_dir() and not child.is_symlink() else child.unlink()
    command = [*base.command, "-I", "-m", "venv", str(env.prefix)]
    made = subprocess.run(command, capture_output=True, text=True, errors="replace", close_fds=False)
    if made.returncode != 0:
        output = (made.stdout + made.stderr).strip()
        by_hand = " ".join(map(quote, command))
        reason = output.splitlines()[-1] if output else f"exit code {made.returncode}"
        raise Failure(Sentence.VENV_FAILED, prefix=env.prefix, reason=reason, command=by_hand)
    marker.write(env.prefix, "installing")


def disk_full_failure(path: Path) -> Failure:
    """The failure for a full disk."""
    temporary = tempfile.gettempdir()
    return Failure(Sentence.DISK_FULL, path=path, temporary=temporary, command=purge_command())


def purge_command() -> str:
    """The command that empties pip's download cache."""
    return f"{quote(sys.executable)} -m pip cache purge"


def read_only_failure(env: Environment) -> Failure:
    """The failure for an environment that is not writable."""
    if env.kind != "project":
        command = env.leave_command
        return Failure(Sentence.ACTIVE_READ_ONLY, kind=env.kind, prefix=env.prefix, command=command)
    root = env.prefix.parent
    command = f"cp -r {quote(root)} ~/darkroom && ~/darkroom/start-ui.sh"
    return Failure(Sentence.READ_ONLY, path=root, command=command)


@contextmanager
def write_errors_as_failures(env: Environment) -> Iterator[None]:
    """Turn the system's write errors into the failures for them."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)):
            raise disk_full_failure(env.prefix) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise read_only_failure(env) from error
        raise


def _version(env: Environment) -> tuple[int, int] | None:
    interpreter = ask([str(env.python)])
    return interpreter.version[:2] if interpreter else None


def _made_for(config: Path) -> tuple[int, int] | None:
    for line in config.read_text(encoding="utf-8", errors="replace").splitlines():
        key, _, value = line.partition("=")
        if key.strip() in ("version", "version_info"):
            numbers = value.strip().split(".")
            if len(numbers) >= 2 and numbers[0].isdigit() and numbers[1].isdigit():
                return int(numbers[0]), int(numbers[1])
    return None
