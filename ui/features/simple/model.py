"""The steps to a LoRA, in the order in which people decide: the state of each as a sentence, and its choices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Literal

from modules.config.presets import MAX_OFFERED, Preset, is_demo_name
from modules.config.records import top_records
from modules.config.schema import Config
from modules.config.usage import reads_references
from modules.data.concept import Concept
from modules.data.subjects import Amount, LengthChoice, is_too_long, is_too_short, length_choices
from modules.system.problem import about, agree, count, format_size, shorten, with_article
from ui.features.simple.here import (
    Here,
    describe_machine,
    describe_misfit,
    describe_needs,
    describe_offer,
    describe_offers,
)
from ui.features.simple.images import CountedImages
from ui.forms.model import Source
from ui.forms.records import inline_records
from ui.loop.wording import schedule_line

_MAX_CAPTION_CHARS = 90
_MAX_PROMPTS = 3  # that are named
_OFFERS_ON_PROCESSOR = 1
_TOY = "Until you choose one, the demo's model trains: a toy for 64 px, which shows how training works."


@dataclass(frozen=True, slots=True)
class Progress:
    """The config and what is known of it. `baseline` is the config as it was loaded.

    The numbers in `counted` are 0 until the images are counted, as are `samples_per_epoch`, and `steps_per_epoch` until
    the sizes of the images are known; `here` is None until this computer is known.
    """

    config: Config
    source: Source
    baseline: Config = field(default_factory=Config)
    counted: CountedImages = field(default_factory=CountedImages)
    here: Here | None = None
    samples_per_epoch: float = 0.0
    steps_per_epoch: int = 0


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several things to choose in a step: its button, and what it means. `value` is what is chosen."""

    label: str
    text: str
    value: Preset | int | Literal["folders", "subfolders", "references", "write", "sentence", "prompt", "fit"]


@dataclass(frozen=True, slots=True)
class Step:
    """A step: its name, its state as a sentence, the buttons that change it (their label and action), and its fields.

    Where it is not done, `choices` are offered; `awaits_choices` is how many may come while they are looked for.
    `is_wrong` if the state is a warning.
    """

    title: str
    describe: Callable[[Progress], str]
    is_done: Callable[[Progress], bool]
    buttons: tuple[tuple[str, str], ...] = ()
    fields: tuple[str, ...] = ()
    choices: Callable[[Progress], tuple[Choice, ...]] = lambda _progress: ()
    is_wrong: Callable[[Progress], bool] = lambda _progress: False
    awaits_choices: Callable[[Progress], int] = lambda _progress: 0


def is_demo(source: Source) -> bool:
    """Return whether the config began as one of the demo's."""
    return is_demo_name(source.name)


def user_concepts(progress: Progress) -> tuple[Concept, ...]:
    """Return the user's concepts with a folder of images, without the demo's."""
    of_demo = {c.path for c in progress.baseline.concepts} if is_demo(progress.source) else set()
    return tuple(c for c in progress.config.concepts if c.enabled and c.path.strip() and c.path not in of_demo)


def image_concepts(progress: Progress) -> tuple[Concept, ...]:
    """Return the user's concepts of images to train on."""
    return tuple(c for c in user_concepts(progress) if c.kind == "training")


# -- the base model


def _has_model(progress: Progress) -> bool:
    """Return whether a preset, a config or a base model is chosen; the demo's model learns no photos."""
    is_chosen = progress.config.model.base_model != progress.baseline.model.base_model
    is_loaded = not is_demo(progress.source) and progress.source != Source()
    needs_gpu = progress.here is not None and not progress.here.has_gpu and not progress.here.fits
    return (is_chosen or is_loaded) and not needs_gpu


def _describe_model(progress: Progress) -> str:
    here = progress.here
    if not _has_model(progress):
        if here is None:
            return "Choose the preset for your model and the memory of your card. It sets everything else."
        toy = f" {_TOY}" if is_demo(progress.source) and user_concepts(progress) else ""
        return f"{describe_machine(here.machine)} {describe_offers(here)}{toy}"
    name = f"Preset {progress.source.name}" if progress.source.kind == "built_in" else progress.source.name
    needs = here.needs if here is not None else None
    download = f" {format_size(needs.download_bytes)} to download first." if needs and needs.download_bytes else ""
    return f"{name}, for {progress.config.family.label}.{download}"


def _preset_choices(progress: Progress) -> tuple[Choice, ...]:
    offers = progress.here.offers if progress.here is not None else ()
    return tuple(Choice(o.preset.name, describe_offer(o, progress.counted.images), o.preset) for o in offers or ())


def _awaits_presets(progress: Progress) -> int:
    here = progress.here
    if here is not None and here.offers is not None:
        return 0
    return MAX_OFFERED if here is None or here.has_gpu else _OFFERS_ON_PROCESSOR


# -- the images and their captions


def _has_images(progress: Progress) -> bool:
    return bool(user_concepts(progress))


def _has_captions(progress: Progress) -> bool:
    """Return whether every image has a caption; true until they are counted."""
    return progress.counted.captions >= progress.counted.images


def _lacks_references(progress: Progress) -> bool:
    """Return whether an editing model lacks the image before the edit of some images."""
    return reads_references(progress.config) and progress.counted.references < progress.counted.images


def _lacks_subfolders(progress: Progress) -> bool:
    """Return whether all images are in subfolders that are not used."""
    return not progress.counted.images and progress.counted.in_subfolders > 0


def _has_all_of_images(progress: Progress) -> bool:
    """Return whether there are images, each with what a run needs of it."""
    lacks = _lacks_references(progress) or _lacks_subfolders(progress) or bool(progress.counted.missing)
    return _has_images(progress) and _has_captions(progress) and not lacks


def _describe_images(progress: Progress) -> str:
    if not _has_images(progress):
        other = "The demo has its own images. " if is_demo(progress.source) else ""
        return f"{other}Add a folder with ten to fifty good images, of different scenes and light."
    names = ", ".join(concept.label for concept in user_concepts(progress))
    if missing := progress.counted.missing:
        folders = "its folder was" if len(missing) == 1 else "their folders were"
        return f"{', '.join(missing)}: {folders} not found, or cannot be read. See Images and captions."
    below, is_part = progress.counted.in_subfolders, progress.counted.is_part
    if not progress.counted.images:  # not counted yet, or in archives
        where = f"{'at least' if is_part else 'all'} {below:,} images are in subfolders"
        if below == 1:
            where = "at least one image is in a subfolder" if is_part else "the only image is in a subfolder"
        return f"{names}: {where}." if below else f"{names}."
    numbers = f"{count(progress.counted.images, 'image')}, {count(progress.counted.captions, 'caption')}"
    if reads_references(progress.config):
        numbers += f", {count(progress.counted.references, 'reference image')}"
        if _lacks_references(progress):
            return f"{names}: {numbers}. This model learns an edit: it needs the image before it with each one."
    advice = (
        ""
        if _has_captions(progress)
        else " Captions name what the images show; what they do not name belongs to your subject."
    )
    least = " At least" if is_part else ""
    more = f"{least} {below:,} more {agree(below, 'is')} in subfolders, and not used." if below else ""
    return f"{names}: {numbers}.{more}{advice}"


def _image_choices(progress: Progress) -> tuple[Choice, ...]:
    if not _has_images(progress):
        about_files = "A text file next to each image, with the same name, is its caption."
        return (Choice("Choose the folder…", about_files, "folders"),)
    if _lacks_references(progress):
        about_folder = "The images before the edit, with the same names as yours."
        return (Choice("Reference folder…", about_folder, "references"),)
    below = progress.counted.in_subfolders
    added = "all images" if progress.counted.is_part else f"the {count(below, 'image')}"
    more = (Choice("Use subfolders", f"Adds {added} in them.", "subfolders"),) if below else ()
    if _has_captions(progress):
        return more if _lacks_subfolders(progress) else ()
    about_sentence = "The same for each image, with the word that your LoRA should learn: for a person or an object."
    about_model = "A model describes each image; then add your word. Better for a style, and for varied images."
    return (
        *more,
        Choice("One sentence for all…", about_sentence, "sentence"),
        Choice("Write them for me…", about_model, "write"),
    )


# -- the length


def _amount(progress: Progress) -> Amount:
    training = progress.config.training
    images_per_step = training.batch_size * training.accumulation_steps
    return Amount(progress.counted.images, progress.samples_per_epoch, images_per_step, progress.steps_per_epoch)


def _usual(progress: Progress) -> LengthChoice | None:
    """Return the subject for which the present length is the usual one."""
    epochs = progress.config.training.epochs
    return next((choice for choice in length_choices(_amount(progress)) if choice.epochs == epochs), None)


def _has_length(progress: Progress) -> bool:
    """Return whether the user has set a length, or it is the usual one of a subject."""
    is_set = progress.config.training.epochs != progress.baseline.training.epochs
    return progress.counted.images > 0 and (is_set or _usual(progress) is not None)


def _time(steps: int, progress: Progress) -> str:
    needs = progress.here.needs if progress.here is not None else None
    return f", about {about(steps * needs.step_seconds)}" if needs is not None else ""


def _views(progress: Progress) -> float:
    return progress.samples_per_epoch * progress.config.training.epochs


def _has_odd_length(progress: Progress) -> bool:
    views = _views(progress)
    return progress.counted.images > 0 and (
        is_too_short(progress.counted.images, views) or is_too_long(progress.counted.images, views)
    )


def _describe_length(progress: Progress) -> str:
    epochs = progress.config.training.epochs
    if not progress.counted.images:
        return f"It depends on the images. Now it is {count(epochs, 'epoch')}."
    steps, views = _amount(progress).steps(epochs), _views(progress)
    seen = f"each image is seen {count(round(views / progress.counted.images), 'time')}."
    text = f"{count(steps, 'step')}{_time(steps, progress)}: {seen}"
    usual = _usual(progress)
    if is_too_short(progress.counted.images, views):
        text += " That is probably too few to learn a subject."
    elif is_too_long(progress.counted.images, views):
        text += " That is so many that the model memorizes the images."
    elif usual is not None:
        text += f" Usual for {with_article(usual.subject.label.lower())}. {usual.subject.reason}"
    return text if _has_length(progress) else f"{text} What do the images show?"


def _length_choices(progress: Progress) -> tuple[Choice, ...]:
    return tuple(
        Choice(c.subject.label, f"{c.length}{_time(c.steps, progress)}. {c.subject.reason}", c.epochs)
        for c in length_choices(_amount(progress))
    )


# -- the memory


def _fits(progress: Progress) -> bool:
    return progress.here is not None and progress.here.needs is not None and progress.here.fits


def _describe_memory(progress: Progress) -> str:
    if progress.here is None:
        return "Looking at this computer…"
    misfit = describe_misfit(progress.here, progress.counted.images)
    return misfit or describe_needs(progress.here)


def _memory_choices(progress: Progress) -> tuple[Choice, ...]:
    text = (
        "Proposes the fastest settings that fit, each with its memory and time. You see them before they are applied."
    )
    here = progress.here
    if here is None or here.needs is None or here.fits:
        return ()
    lacks_memory = here.has_gpu or here.needs.memory_bytes > here.machine.memory_bytes
    return (Choice("Fit to my card…", text, "fit"),) if lacks_memory else ()  # a processor may only be too slow


# -- the samples and the result


def _prompts(progress: Progress) -> list[str]:
    of_demo = {p.prompt for p in progress.baseline.sampling.prompts} if is_demo(progress.source) else set()
    return [p.prompt for p in progress.config.sampling.prompts if p.enabled and p.prompt not in of_demo]


def _describe_samples(progress: Progress) -> str:
    prompts = _prompts(progress)
    if not prompts:
        return "Add a prompt with the words of your captions: its images show how the run is going."
    named = [
        shorten(" ".join(p.split()), max_chars=_MAX_CAPTION_CHARS) or "(no prompt)" for p in prompts[:_MAX_PROMPTS]
    ]
    more = f", and {len(prompts) - len(named):,} more" if len(prompts) > len(named) else ""
    settings = progress.config.sampling
    when = schedule_line("Samples", settings.every, at_start=settings.at_start, at_end=settings.at_end)
    return f"{'; '.join(named)}{more}.{f' {when}.' if settings.every.is_never else ''}"


def _prompt_choices(progress: Progress) -> tuple[Choice, ...]:
    text = shorten(" ".join(progress.counted.caption.split()), max_chars=_MAX_CAPTION_CHARS)
    return (Choice("Use a caption", f"The first one: {text}", "prompt"),) if text else ()


def _trains_a_lora(progress: Progress) -> bool:
    return progress.config.training.trains == "adapter"


def _describe_result(progress: Progress) -> str:
    if not _trains_a_lora(progress):
        return "This config does not train a LoRA: the training target in the top bar is another one."
    return f"It will be {Path(progress.config.output.destination).name}. A higher rank learns more, from more images."


STEPS: tuple[Step, ...] = (
    Step(
        "Base model",
        _describe_model,
        _has_model,
        (("All presets…", "find_preset"),),
        ("model.base_model",),
        _preset_choices,
        awaits_choices=_awaits_presets,
    ),
    Step(
        "Images",
        _describe_images,
        _has_all_of_images,
        (("Images and captions…", "page_concepts"),),
        choices=_image_choices,
        is_wrong=lambda progress: bool(progress.counted.missing),
    ),
    Step(
        "Length",
        _describe_length,
        _has_length,
        (("How long to train…", "length"),),
        ("training.epochs",),
        _length_choices,
        _has_odd_length,
    ),
    Step(
        "Memory",
        _describe_memory,
        _fits,
        fields=("data.resolution_px",),
        choices=_memory_choices,
        is_wrong=lambda progress: progress.here is not None and not progress.here.fits,
    ),
    Step(
        "Samples",
        _describe_samples,
        lambda progress: bool(_prompts(progress)),
        (("Prompts…", "page_sampling"),),
        choices=_prompt_choices,
    ),
    Step(
        "LoRA",
        _describe_result,
        _trains_a_lora,
        fields=("adapter", "training.learning_rate", "output.destination", "output.trigger_words"),
        is_wrong=lambda progress: not _trains_a_lora(progress),
    ),
)
FIELDS = tuple(path for step in STEPS for path in step.fields)


def has_field(config: Config, path: str) -> bool:
    """Return whether the page has the field at a path; fields of an adapter under other headings are left out."""
    records = [record for record in top_records(type(config)).values() if record.path in FIELDS]
    inner = (inline_records(config, record) if record.kind == "section" else (record,) for record in records)
    return path in FIELDS or any(f"{path}.".startswith(f"{shown.path}.") for shown in chain.from_iterable(inner))
