"""The first minute: three ways to begin, and the steps of the chosen one, ticked off when they are done."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from modules.config.presets import DEMO, Preset
from modules.config.schema import Config
from modules.data.concept import Concept
from modules.data.subjects import Amount, length_choices
from modules.system.problem import about, count, cut
from ui.features.first_steps.here import (
    Here,
    describe_machine,
    describe_misfit,
    describe_offer,
    describe_offers,
)
from ui.forms.model import Source

_MAX_CAPTION_CHARS = 90
HIDDEN = ""  # the state without the name of a way


@dataclass(frozen=True, slots=True)
class Progress:
    """The user's progress so far. `baseline` is the config as it was loaded.

    The images and captions in the user's folders are 0 until they are counted; `here` is None until this computer is
    known; `skipped` has the titles of steps that the user does not want. `samples_per_epoch` are those of the counted
    images, and `caption` is the first caption; `length_for` is the number of images for which the user chose the length
    of the run.
    """

    config: Config
    source: Source
    baseline: Config = field(default_factory=Config)
    num_errors: int = 0
    has_started: bool = False
    has_finished: bool = False
    num_images: int = 0
    num_captions: int = 0
    here: Here | None = None
    samples_per_epoch: float = 0.0
    caption: str = ""
    length_for: int = 0
    skipped: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several things to choose in a step: its button, and what it means. `value` is what is chosen."""

    label: str
    text: str
    value: Preset | int | Literal["folders", "write", "sentence", "prompt"]


def _no_choices(_progress: Progress) -> tuple[Choice, ...]:
    return ()


@dataclass(frozen=True, slots=True)
class Step:
    """A step: its name, what to do, a button that runs an action or opens a page, and choices. One can be skipped."""

    title: str
    text: str | Callable[[Progress], str]
    button: str
    is_done: Callable[[Progress], bool]
    action: str = ""
    page: str = ""
    can_be_skipped: bool = False
    choices: Callable[[Progress], tuple[Choice, ...]] = _no_choices

    def instruction(self, progress: Progress) -> str:
        """Return the instruction of the step."""
        return self.text if isinstance(self.text, str) else self.text(progress)


@dataclass(frozen=True, slots=True)
class Way:
    """A way to begin: its label, what it is for, its steps, and the action that it begins with."""

    label: str
    text: str
    steps: tuple[Step, ...]
    action: str = ""


def _is_demo(progress: Progress) -> bool:
    return progress.source.name == DEMO


def user_concepts(progress: Progress) -> tuple[Concept, ...]:
    """Return the user's concepts with a folder of images, without the demo's."""
    of_demo = {c.path for c in progress.baseline.concepts} if _is_demo(progress) else set()
    return tuple(c for c in progress.config.concepts if c.enabled and c.path.strip() and c.path not in of_demo)


def image_concepts(progress: Progress) -> tuple[Concept, ...]:
    """Return the user's concepts of images to train on."""
    return tuple(c for c in user_concepts(progress) if c.kind == "training")


def _has_user_images(progress: Progress) -> bool:
    return bool(user_concepts(progress))


def _has_captions(progress: Progress) -> bool:
    """Return whether every image has a caption, or the user trains without; true until counted."""
    return progress.num_captions >= progress.num_images or _CAPTIONS in progress.skipped


def _describe_captions(progress: Progress) -> str:
    images, captions = count(progress.num_images, "image"), count(progress.num_captions, "caption")
    return f"{images}, {captions}. Captions name what the images show; what they do not name belongs to your subject."


def _caption_choices(_progress: Progress) -> tuple[Choice, ...]:
    about_sentence = (
        "The same for each image, with the word that your LoRA should learn. Quick, for a person or an object."
    )
    about_model = "A model describes each image; then add your word. Better for a style, and for varied images."
    return (
        Choice("One sentence for all…", about_sentence, "sentence"),
        Choice("Write them for me…", about_model, "write"),
    )


def _describe_presets(progress: Progress) -> str:
    here = progress.here
    if here is None:
        return "Choose the preset for your model and the memory of your card. It sets everything else."
    misfit = describe_misfit(here, progress.num_images) if _is_preset_loaded(progress) else ""
    return " ".join(filter(None, (misfit or describe_machine(here.machine), describe_offers(here))))


def _describe_memory(progress: Progress) -> str:
    misfit = describe_misfit(progress.here, progress.num_images) if progress.here is not None else ""
    return f"{misfit} Fit to my card finds the fastest settings that fit, and shows what they cost."


def _fits(progress: Progress) -> bool:
    """Return whether the settings fit this computer, or the user tries all the same; true until that is known."""
    return progress.here is None or progress.here.fits or _MEMORY in progress.skipped


def _preset_choices(progress: Progress) -> tuple[Choice, ...]:
    found = progress.here.offers if progress.here is not None else ()
    return tuple(Choice(o.preset.name, describe_offer(o, progress.num_images), o.preset) for o in found or ())


def _length_choices(progress: Progress) -> tuple[Choice, ...]:
    training = progress.config.training
    amount = Amount(progress.num_images, progress.samples_per_epoch, training.batch_size * training.accumulation_steps)
    needs = progress.here.needs if progress.here is not None else None
    choices = []
    for choice in length_choices(amount):
        time = f", about {about(choice.steps * needs.step_seconds)}" if needs is not None else ""
        text = f"{choice.length}{time}. {choice.subject.reason}"
        choices.append(Choice(choice.subject.label, text, choice.epochs))
    return tuple(choices)


def _describe_length(progress: Progress) -> str:
    epochs = count(progress.config.training.epochs, "epoch")
    return (
        f"What do your {count(progress.num_images, 'image')} show? That decides how long to train. Now it is {epochs}."
    )


def _has_length(progress: Progress) -> bool:
    """Return whether the user chose a length for these images, or set another one; true until they are counted."""
    is_set = progress.config.training.epochs != progress.baseline.training.epochs and progress.length_for == 0
    return (
        not progress.num_images or is_set or progress.length_for == progress.num_images or _LENGTH in progress.skipped
    )


def _folder_choices(_progress: Progress) -> tuple[Choice, ...]:
    return (Choice("Choose the folder…", "Ten to fifty good images, of different scenes and light.", "folders"),)


def _prompt_choices(progress: Progress) -> tuple[Choice, ...]:
    text = cut(" ".join(progress.caption.split()), max_chars=_MAX_CAPTION_CHARS)
    return (Choice("Use a caption", f"The first one: {text}", "prompt"),) if text else ()


def _has_prompts(progress: Progress) -> bool:
    of_demo = {p.prompt for p in progress.baseline.sampling.prompts} if _is_demo(progress) else set()
    return any(p.enabled and p.prompt not in of_demo for p in progress.config.sampling.prompts)


def _is_preset_loaded(progress: Progress) -> bool:
    """Return whether a preset or a config is loaded. The demo's is one for those who add their images to it."""
    return _has_user_images(progress) if _is_demo(progress) else progress.source != Source()


def _has_preset(progress: Progress) -> bool:
    """Return whether a preset is loaded; without a GPU, one that this computer can train."""
    needs_gpu = progress.here is not None and not progress.here.has_gpu and not progress.here.fits
    return _is_preset_loaded(progress) and not needs_gpu


def _has_config(progress: Progress) -> bool:
    return progress.source.kind == "file" or (progress.source.kind == "none" and progress.source != Source())


_CAPTIONS, _MEMORY, _LENGTH = "Captions", "Memory", "Length"


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
        (
            Step(
                "Preset",
                _describe_presets,
                "All presets…",
                _has_preset,
                action="find_preset",
                choices=_preset_choices,
            ),
            Step(_MEMORY, _describe_memory, "Fit to my card…", _fits, action="fit", can_be_skipped=True),
            Step(
                "Images",
                "Add the folder with your images. A text file next to each image, with the same name, is its caption.",
                "Open Concepts",
                _has_user_images,
                page="concepts",
                choices=_folder_choices,
            ),
            Step(
                _CAPTIONS,
                _describe_captions,
                "Open Concepts",
                _has_captions,
                page="concepts",
                can_be_skipped=True,
                choices=_caption_choices,
            ),
            Step(
                "Prompt",
                "Add a prompt with the words of your captions: its images show how the run is going.",
                "Open Sampling",
                _has_prompts,
                page="sampling",
                choices=_prompt_choices,
            ),
            Step(
                _LENGTH,
                _describe_length,
                "Open Training",
                _has_length,
                page="training",
                can_be_skipped=True,
                choices=_length_choices,
            ),
            _start("Press Start: everything is checked first, and what is missing is listed with its place."),
            _WATCH,
        ),
    ),
    "config": Way(
        "Open a config",
        "A file of OneTrainer, kohya or ai-toolkit, or the settings in a LoRA file.",
        (
            Step("Open", "Choose the file; it is converted and stays unchanged.", "Open…", _has_config, action="load"),
            Step(
                "Check",
                "Settings with an error are marked and listed below. Most often the model or a folder has moved.",
                "Open Model",
                lambda p: p.num_errors == 0,
                page="model",
            ),
            _start("Everything needed is there. Press Start."),
            _WATCH,
        ),
        action="load",
    ),
}


def current_step(way: Way, progress: Progress) -> int:
    """Return the number of the first step that is not done; the number of all steps if everything is done."""
    return next((i for i, step in enumerate(way.steps) if not step.is_done(progress)), len(way.steps))
