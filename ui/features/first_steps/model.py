"""The first minute: three ways to begin, and the steps of the chosen one, ticked off when they are done."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from modules.config.presets import DEMO
from ui.forms.model import Source

HIDDEN = ""  # the state without the name of a way


@dataclass(frozen=True, slots=True)
class Progress:
    """The user's progress so far: what is loaded, how many errors it has, whether its images are missing, and whether a
    run has started and ended.
    """

    source: Source
    num_errors: int = 0
    lacks_images: bool = False
    has_started: bool = False
    has_finished: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """A step: its name, what to do, and a button that runs an action or opens a page."""

    title: str
    text: str
    button: str
    is_done: Callable[[Progress], bool]
    action: str = ""
    page: str = ""


@dataclass(frozen=True, slots=True)
class Way:
    """A way to begin: its label, what it is for, the action that it begins with, and the steps that follow."""

    label: str
    text: str
    steps: tuple[Step, ...] = ()
    action: str = ""


def _is_demo(progress: Progress) -> bool:
    return progress.source.name == DEMO


def _has_config(progress: Progress) -> bool:
    return progress.source.kind == "file" or (progress.source.kind == "none" and progress.source != Source())


def _start(text: str) -> Step:
    return Step("Start", text, "Start", lambda p: p.has_started, action="start")


_WATCH = Step(
    "Watch",
    "The Run page shows the loss and the samples while it trains. You can stop at any time and resume later.",
    "Open the Run page",
    lambda p: p.has_finished,
    page="run",
)

WAYS: Mapping[str, Way] = {
    "demo": Way(
        "Try the demo",
        "Trains a tiny model on a dozen images in a minute or two. No download, no GPU.",
        (
            Step("Load the demo", "Everything is set in the preset #demo.", "Load it", _is_demo, action="demo"),
            _start("The settings and images are ready. Press Start."),
            _WATCH,
        ),
        action="demo",
    ),
    "images": Way(
        "Train my images",
        "A LoRA of a person, an object or a style, from a folder of your images.",
        action="page_simple",
    ),
    "config": Way(
        "Open a config",
        "A file of OneTrainer, kohya or ai-toolkit, or the settings in a LoRA file.",
        (
            Step("Open", "Choose the file; it is converted and stays unchanged.", "Open…", _has_config, action="load"),
            Step(
                "Check",
                "Something has to be changed first. Check again lists what is wrong, and what to do.",
                "Check again",
                lambda p: p.num_errors == 0,
                action="start",
            ),
            Step(
                "Images",
                "The config names no folder of images. Add yours.",
                "Open Concepts",
                lambda p: not p.lacks_images,
                page="concepts",
            ),
            _start("No setting has an error. Start checks the images and the memory."),
            _WATCH,
        ),
        action="load",
    ),
}


def current_step(way: Way, progress: Progress) -> int:
    """Return the number of the first step that is not done; the number of all steps if everything is done."""
    return next((i for i, step in enumerate(way.steps) if not step.is_done(progress)), len(way.steps))
