"""What is watched while a run goes: validation, samples, backups and saves."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge, Le, MultipleOf

from modules.config.every import Every
from modules.config.field import Section, Setting, one_of
from modules.diffusion.samplers.registry import sampler_labels


class Validation(Section):
    """The loss on pictures that are not trained on."""

    every: Annotated[
        Every,
        Setting(
            "Validate",
            "How often the loss on the validation concepts is measured.",
            group="Validation",
            changeable_on_resume=True,
        ),
    ] = Every()
    num_timesteps: Annotated[
        int,
        Ge(1),
        Le(100),
        Setting(
            "Noise levels",
            "At how many fixed noise levels each picture is measured. More give a steadier number.",
            group="Validation",
            level="advanced",
            changeable_on_resume=True,
        ),
    ] = 4


class SamplePrompt(Section):
    """A picture to paint now and then, to see how the training goes."""

    enabled: Annotated[bool, Setting("Enabled", "Whether this sample is painted.")] = True
    prompt: Annotated[str, Setting("Prompt", "What the picture is to show.", multiline=True)] = ""
    negative_prompt: Annotated[str, Setting("Negative prompt", "What the picture is not to show.", multiline=True)] = ""
    width_px: Annotated[int, Ge(8), Le(8192), MultipleOf(8), Setting("Width", "Of the picture.", unit="px")] = 512
    height_px: Annotated[int, Ge(8), Le(8192), MultipleOf(8), Setting("Height", "Of the picture.", unit="px")] = 512
    seed: Annotated[
        int,
        Ge(0),
        Le(2**63 - 1),
        Setting("Seed", "The same seed gives the same picture from the same weights."),
    ] = 42
    steps: Annotated[int, Ge(1), Le(1000), Setting("Steps", "More steps take longer and often look finer.")] = 25
    guidance: Annotated[
        float,
        Ge(0),
        Le(100),
        Setting("Guidance", "How strictly the picture follows the prompt; 1 switches it off."),
    ] = 7.5
    sampler: Annotated[
        str, *one_of(sampler_labels), Setting("Sampler", "How the noise is taken out.", level="advanced")
    ] = "ddim"


class Sampling(Section):
    """When samples are painted, and how they are kept."""

    every: Annotated[
        Every,
        Setting("Paint samples", "How often the samples are painted.", group="Samples", changeable_on_resume=True),
    ] = Every(n=1, unit="epoch")
    at_start: Annotated[
        bool,
        Setting("Also before the first step", "Shows what the model does before it learns.", group="Samples"),
    ] = True
    at_end: Annotated[
        bool,
        Setting(
            "Also at the end",
            "Shows what the finished model does.",
            group="Samples",
            changeable_on_resume=True,
        ),
    ] = True
    image_format: Annotated[
        Literal["png", "jpg"],
        Setting(
            "File format",
            "PNG is exact, JPG smaller.",
            group="Samples",
            level="advanced",
            choice_labels={"png": "PNG", "jpg": "JPG"},
            changeable_on_resume=True,
        ),
    ] = "png"
    prompts: Annotated[
        tuple[SamplePrompt, ...],
        Setting("Samples", "The pictures to paint.", group="Samples", changeable_on_resume=True),
    ] = ()


class Backup(Section):
    """Backups, from which a run goes on; and saves, which other programs can use."""

    every: Annotated[
        Every,
        Setting(
            "Back up",
            "How often everything is written that is needed to go on after a crash.",
            group="Backups",
            changeable_on_resume=True,
        ),
    ] = Every(n=30, unit="minute")
    keep: Annotated[
        int,
        Ge(0),
        Le(1000),
        Setting(
            "Keep the newest",
            "Older backups of the same run are removed; 0 keeps all.",
            unit="backups",
            group="Backups",
            changeable_on_resume=True,
        ),
    ] = 3
    at_end: Annotated[
        bool,
        Setting(
            "Back up at the end",
            "Lets a finished or stopped run go on later, with more epochs for example.",
            group="Backups",
            changeable_on_resume=True,
        ),
    ] = True
    save_every: Annotated[
        Every,
        Setting(
            "Save the model",
            "How often a usable file is written to the run's save folder, to compare and choose from.",
            group="Saves",
            changeable_on_resume=True,
        ),
    ] = Every()
    save_prefix: Annotated[
        str,
        Setting(
            "File name begins with",
            "The beginning of the names of saved files.",
            group="Saves",
            level="advanced",
            empty_means="the name of the result",
            changeable_on_resume=True,
        ),
    ] = ""
