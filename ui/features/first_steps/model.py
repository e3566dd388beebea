"""The first minute: four ways to begin, and the steps of the chosen one, ticked off when they are done."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from modules.config.presets import DEMO
from modules.config.schema import Config
from modules.data.concept import Concept
from modules.system.paths import from_root
from modules.system.problem import count
from ui.forms.model import Source

if TYPE_CHECKING:
    from ui.widgets.files.listing import Counts

_MOST_NAMED = 4  # families, so that the sentence stays on a line
CHOOSING, HIDDEN = "choose", ""  # states in addition to the names of the ways


@dataclass(frozen=True, slots=True)
class GraphicsCard:
    """The memory of this computer's card, and the labels of the families that there are presets for it of."""

    gigabytes: int
    families: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Progress:
    """The user's progress so far. `baseline` is the config as it was loaded.

    The images and captions in the user's folders are 0 until they are counted; `card` is None until it is known, and
    without one; `skipped` has the titles of steps that the user does not want.
    """

    config: Config
    source: Source
    baseline: Config = field(default_factory=Config)
    num_errors: int = 0
    has_started: bool = False
    has_finished: bool = False
    num_images: int = 0
    num_captions: int = 0
    card: GraphicsCard | None = None
    skipped: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Step:
    """A step: its name, what to do, and a button that runs an action or opens a page. One can be skipped."""

    title: str
    text: str | Callable[[Progress], str]
    button: str
    is_done: Callable[[Progress], bool]
    action: str = ""
    page: str = ""
    can_be_skipped: bool = False

    def instruction(self, progress: Progress) -> str:
        """Return the instruction of the step."""
        return self.text if isinstance(self.text, str) else self.text(progress)


@dataclass(frozen=True, slots=True)
class Way:
    """A way to begin: its label, what it is for, its steps, and the action that it begins with."""

    label: str
    text: str
    steps: tuple[Step, ...] = ()
    action: str = ""


def _is_demo(progress: Progress) -> bool:
    return progress.source.name == DEMO


def user_concepts(progress: Progress) -> tuple[Concept, ...]:
    """Return the user's concepts with a folder of images, without the demo's."""
    of_demo = {c.path for c in progress.baseline.concepts} if _is_demo(progress) else set()
    return tuple(c for c in progress.config.concepts if c.enabled and c.path.strip() and c.path not in of_demo)


def captioned_concepts(progress: Progress) -> tuple[Concept, ...]:
    """Return the user's concepts whose captions are text files next to the images."""
    return tuple(c for c in user_concepts(progress) if c.has_images and c.caption_source == "text_file")


def _has_user_images(progress: Progress) -> bool:
    return bool(user_concepts(progress))


def _has_captions(progress: Progress) -> bool:
    """Return whether every image has a caption, or the user trains without; true until counted."""
    return progress.num_captions >= progress.num_images or _CAPTIONS in progress.skipped


def _describe_captions(progress: Progress) -> str:
    images, captions = count(progress.num_images, "image"), count(progress.num_captions, "caption")
    return f"{images}, {captions}. A model can write them; then add the word that your LoRA should learn."


def _describe_presets(progress: Progress) -> str:
    card = progress.card
    if card is None or not card.families:
        return "Choose the preset for your model and the memory of your card. It sets everything else."
    *others, last = card.families
    if len(others) >= _MOST_NAMED:
        others, last = others[:_MOST_NAMED], f"{len(card.families) - _MOST_NAMED} more"
    families = f"{', '.join(others)} and {last}" if others else last
    return f"Your card has {card.gigabytes} GB: enough for the presets of {families}. One sets everything else."


def _has_prompts(progress: Progress) -> bool:
    of_demo = {p.prompt for p in progress.baseline.sampling.prompts} if _is_demo(progress) else set()
    return any(p.enabled and p.prompt not in of_demo for p in progress.config.sampling.prompts)


def _has_preset(progress: Progress) -> bool:
    """Return whether a preset or a config is loaded. The demo's is one for those who add their images to it."""
    return _has_user_images(progress) if _is_demo(progress) else progress.source != Source()


def _has_config(progress: Progress) -> bool:
    return progress.source.kind == "file" or (progress.source.kind == "none" and progress.source != Source())


_CAPTIONS = "Captions"


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
                "Presets…",
                _has_preset,
                action="find_preset",
            ),
            Step(
                "Images",
                "Add the folder with your images. A text file next to each image, with the same name, is its caption.",
                "Open Concepts",
                _has_user_images,
                page="concepts",
            ),
            Step(
                _CAPTIONS,
                _describe_captions,
                "Write captions…",
                _has_captions,
                action="auto_captions",
                can_be_skipped=True,
            ),
            Step(
                "Prompt",
                "Add a prompt with the words of your captions: its images show how the run is going.",
                "Open Sampling",
                _has_prompts,
                page="sampling",
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
    "resume": Way("Continue the last run", "Resumes from its newest backup.", action="resume"),
}


def current_step(way: Way, progress: Progress) -> int:
    """Return the number of the first step that is not done; the number of all steps if everything is done."""
    return next((i for i, step in enumerate(way.steps) if not step.is_done(progress)), len(way.steps))


def find_card() -> GraphicsCard | None:
    """Return the card of this computer; None without one. For a background thread: it runs a tool of the driver."""
    from modules.config.presets import families_for_card, list_presets, readable_configs
    from modules.families.registry import family_labels
    from modules.system.hardware import gpu_memory

    memory, labels = gpu_memory("auto"), family_labels()
    if memory is None:
        return None
    families = families_for_card(readable_configs(list_presets()), memory.nominal_gb)
    return GraphicsCard(memory.nominal_gb, tuple(labels[family] for family in families if family in labels))


def count_captions(concepts: Iterable[Concept]) -> Counts:
    """Return how many images the folders have, and how many of them a caption file. For a background thread.

    Images in archives are left out, and so are folders that cannot be listed.
    """
    from modules.data.archives import archive_of
    from modules.data.listing import list_images
    from ui.widgets.files.listing import Counts

    num_images = num_captions = 0
    for concept in concepts:
        try:
            listed = list_images(from_root(concept.path), include_subfolders=concept.include_subfolders).images
        except OSError:
            continue
        images = [image for image in listed if archive_of(image) is None]
        num_images += len(images)
        num_captions += sum(image.with_suffix(concept.caption_extension).is_file() for image in images)
    return Counts(num_images, num_captions)
