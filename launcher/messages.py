"""All failure messages, each with the problem and the command that fixes it."""

import re
from enum import Enum


class Sentence(Enum):
    """One message per failure; `Failure` fills in the `{names}`."""

    ACTIVE_WITHOUT_PYTHON = "The active {kind} environment {prefix} has no Python; install one with: {command}"
    ACTIVE_WRONG_VERSION = (
        "The active {kind} environment {prefix} runs Python {version}, but Darkroom needs 3.11 to 3.14; "
        "leave it and start again with: {command}"
    )
    ACTIVE_NOT_ITSELF = (
        "The active {kind} environment {prefix} is not valid: its Python installs into {actual}; "
        "leave it and start again with: {command}"
    )
    ACTIVE_CONFLICT = (
        "The active {kind} environment {prefix} contains {held}, but Darkroom needs {needed}; "
        "leave it unchanged with `{leave}`, or change it with: {command}"
    )
    ACTIVE_RESOLUTION = (
        "The packages in the active {kind} environment {prefix} conflict with the packages that Darkroom "
        "needs (details in {log}); leave the environment unchanged and start again with: {command}"
    )
    ACTIVE_MANAGED = (
        "The active {kind} environment {prefix} is externally managed; create one for Darkroom with: {command}"
    )
    ACTIVE_READ_ONLY = (
        "The active {kind} environment {prefix} is not writable; leave it and start again with: {command}"
    )
    FOLDER_NOT_OURS = "{prefix} exists but is not a virtual environment; move it away with: {command}"
    NO_TKINTER = "Python {version} ({python}) has no tkinter, which the window needs; install it with: {command}"
    TK_BROKEN = "The tkinter of Python {version} ({python}) does not work ({reason}); reinstall it with: {command}"
    NO_VENV = (
        "Python {version} ({python}) has no venv and ensurepip, which create the environment; "
        "install them with: {command}"
    )
    NO_PIP = "The environment {prefix} has no pip; install it with: {command}"
    NO_DISPLAY = "There is no display to open the window on ({reason}); train without the window with: {command}"
    NO_TEST_DISPLAY = "The tests open real windows, but there is neither a display nor Xvfb; install it with: {command}"
    NO_NETWORK = (
        "The packages could not be downloaded because the network cannot be reached (details in {log}); "
        "connect to the internet and start again with: {command}"
    )
    NO_TORCH_INDEX = (
        "DARKROOM_TORCH_INDEX is {index}, which cannot be reached or has no torch {version} for this Python; "
        "choose another index or start without it: {command}"
    )
    READ_ONLY = "{path} is not writable; copy Darkroom to a folder of your own with: {command}"
    DISK_FULL = (
        "The disk of {path} is full (or that of {temporary}, where packages are unpacked); "
        "free some space and start again, for example with: {command}"
    )
    DISK_TOO_SMALL = (
        "The disk of {path} has {free_gb:.1f} GB free, and the first installation needs about {needed_gb} GB; "
        "free some space and start again, for example with: {command}"
    )
    TORCH_BROKEN = (
        "The torch {version} in {prefix} cannot be imported ({reason}); "
        "remove it with this command, and the next start installs a working one: {command}"
    )
    TORCHVISION_BROKEN = (
        "The torchvision in {prefix} cannot be imported, and diffusers does not work with it installed; "
        "Darkroom does not need it, so remove it with: {command}"
    )
    VENV_FAILED = "The environment {prefix} could not be created ({reason}); try it manually with: {command}"
    PIP_FAILED = "pip could not install the packages ({reason}); read {log}, then try again with: {command}"
    STILL_MISSING = (
        "After the installation these packages are still missing: {names}; read {log}, then try again with: {command}"
    )
    BUSY = "Another start of Darkroom is installing into {prefix}; wait for it, then start again with: {command}"
    INTERRUPTED = "The installation was interrupted; the next start continues it: {command}"
    INCOMPLETE = "{path} is missing or damaged ({reason}); download the program again, for example with: {command}"
    UNEXPECTED = "The launcher failed unexpectedly ({reason}); please report the output of: {command}"


class Failure(Exception):  # noqa: N818 - an outcome reported to the user, not a programming error
    """Ends the launcher with one message and an exit code."""

    def __init__(self, sentence: Sentence, *, exit_code: int = 1, **parts: object) -> None:
        self.sentence = sentence
        self.exit_code = exit_code
        self.what = _in_a_line(sentence.value.partition("; ")[0].format(**parts))
        """The problem alone, without the commands for a terminal: a window shows this part."""
        super().__init__(_in_a_line(sentence.value.format(**parts)))


def _in_a_line(text: str) -> str:
    return re.sub(r"\s*\n\s*", " ", text)
