"""The catalogue of sentences a person can meet: what is missing, and the command that mends it."""

import re
from enum import Enum


class Sentence(Enum):
    """One sentence per way to fail; `{names}` are filled in by `Failure`."""

    ACTIVE_WITHOUT_PYTHON = "The active {kind} environment {prefix} has no Python; put one in with: {command}"
    ACTIVE_WRONG_VERSION = (
        "The active {kind} environment {prefix} runs Python {version}, and Darkroom needs 3.11 to 3.14; "
        "leave it and start again with: {command}"
    )
    ACTIVE_NOT_ITSELF = (
        "The active {kind} environment {prefix} is not one: its Python installs into {actual}; "
        "leave it and start again with: {command}"
    )
    ACTIVE_CONFLICT = (
        "The active {kind} environment {prefix} holds {held}, and Darkroom needs {needed}; "
        "leave it untouched with `{leave}`, or change it with: {command}"
    )
    ACTIVE_RESOLUTION = (
        "What the active {kind} environment {prefix} already holds does not go together with what Darkroom "
        "needs (details in {log}); leave it untouched and start again with: {command}"
    )
    ACTIVE_MANAGED = (
        "The active {kind} environment {prefix} is locked against installing; make one for Darkroom with: {command}"
    )
    ACTIVE_READ_ONLY = (
        "Darkroom may not write to the active {kind} environment {prefix}; leave it and start again with: {command}"
    )
    FOLDER_NOT_OURS = "{prefix} is in the way: it is no virtual environment; move it away with: {command}"
    NO_TKINTER = "Python {version} ({python}) comes without tkinter, which the window needs; get it with: {command}"
    TK_BROKEN = "The tkinter of Python {version} ({python}) does not work ({reason}); get it anew with: {command}"
    NO_VENV = (
        "Python {version} ({python}) comes without venv and ensurepip, which make the environment; "
        "get them with: {command}"
    )
    NO_PIP = "The environment {prefix} has no pip; put it in with: {command}"
    NO_DISPLAY = "There is no display to open the window on ({reason}); train without the window with: {command}"
    NO_TEST_DISPLAY = (
        "The tests open real windows, and there is neither a display nor Xvfb here; get one with: {command}"
    )
    NO_NETWORK = (
        "The packages could not be fetched because the network cannot be reached (details in {log}); "
        "go online once and start again with: {command}"
    )
    NO_TORCH_INDEX = (
        "DARKROOM_TORCH_INDEX is {index}, which cannot be reached or has no torch {version} for this Python; "
        "choose another one or start without it: {command}"
    )
    READ_ONLY = "Darkroom may not write to {path}; copy it to a place of your own with: {command}"
    DISK_FULL = (
        "The disk of {path} is full (or that of {temporary}, where packages are unpacked); "
        "make room and start again, for instance with: {command}"
    )
    DISK_TOO_SMALL = (
        "The disk of {path} has {free_gb:.1f} GB free, and the first installation needs about {needed_gb} GB; "
        "make room and start again, for instance with: {command}"
    )
    TORCH_BROKEN = (
        "The torch {version} in {prefix} cannot be imported ({reason}); "
        "remove it, and the next start installs a working one: {command}"
    )
    TORCHVISION_BROKEN = (
        "The torchvision in {prefix} cannot be imported, and diffusers cannot work beside it; "
        "Darkroom does not need it, so remove it with: {command}"
    )
    VENV_FAILED = "The environment {prefix} could not be made ({reason}); try it by hand with: {command}"
    PIP_FAILED = "pip could not install the packages ({reason}); read {log}, then try again with: {command}"
    STILL_MISSING = (
        "After the installation these are still not right: {names}; read {log}, then try again with: {command}"
    )
    BUSY = "Another start of Darkroom is installing into {prefix}; wait for it, then start again with: {command}"
    INTERRUPTED = "The installation was interrupted; the next start goes on from there: {command}"
    INCOMPLETE = "{path} is missing or damaged ({reason}); get the program anew, for instance with: {command}"
    UNEXPECTED = "The launcher itself failed ({reason}); please report it with what this shows: {command}"


class Failure(Exception):  # noqa: N818 - it is an outcome told to a person, not a programming error
    """Ends the launcher with one sentence and an exit code."""

    def __init__(self, sentence: Sentence, *, exit_code: int = 1, **parts: object) -> None:
        self.sentence = sentence
        self.exit_code = exit_code
        super().__init__(re.sub(r"\s*\n\s*", " ", sentence.value.format(**parts)))
