"""What is watched while a run goes: validation and samples."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge, Le, MultipleOf

from modules.sampling.registry import sampler_labels
from modules.settings.every import Every
from modules.settings.field import Section, Setting, When, one_of


class Validation(Section):
    """The loss on images that are not trained on."""

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
            "At how many fixed noise levels each image is measured. More give a steadier number.",
            group="Validation",
            level="advanced",
            changeable_on_resume=True,
        ),
    ] = 4
    keep_best: Annotated[
        bool,
        Setting(
            "Keep the best",
            "Whenever the validation loss is lower than ever in this run, the model is saved in the run's save folder "
            'as "...-best", in place of the one before. What is measured before the first step does not compete.',
            group="Validation",
            changeable_on_resume=True,
        ),
    ] = False
    result: Annotated[
        Literal["last", "best"],
        Setting(
            "The result is",
            "Which model is written where the result goes when the run ends: as it is after the last step, or as it "
            "was when the validation loss was lowest.",
            group="Validation",
            choice_labels={"last": "The last", "best": "The best"},
            applies_when=When("keep_best", (True,)),
            changeable_on_resume=True,
        ),
    ] = "last"
    stop_after_worse: Annotated[
        int,
        Ge(0),
        Le(10_000),
        Setting(
            "Stop early after",
            "The run ends, and saves, once this many validations in a row were not better than the best before them. "
            "0 never stops early.",
            unit="validations",
            group="Validation",
            changeable_on_resume=True,
        ),
    ] = 0


class SamplePrompt(Section):
    """An image to paint now and then, to see how the training goes."""

    enabled: Annotated[bool, Setting("Enabled", "Whether this sample is painted.")] = True
    prompt: Annotated[str, Setting("Prompt", "What the image is to show.", multiline=True)] = ""
    negative_prompt: Annotated[str, Setting("Negative prompt", "What the image is not to show.", multiline=True)] = ""
    width_px: Annotated[int, Ge(8), Le(8192), MultipleOf(8), Setting("Width", "Of the image.", unit="px")] = 512
    height_px: Annotated[int, Ge(8), Le(8192), MultipleOf(8), Setting("Height", "Of the image.", unit="px")] = 512
    seed: Annotated[
        int,
        Ge(0),
        Le(2**63 - 1),
        Setting("Seed", "The same seed gives the same image from the same weights."),
    ] = 42
    random_seed: Annotated[
        bool,
        Setting(
            "Another seed each time",
            "Paints from another seed each time; the change over the run is then hard to tell from chance.",
            level="advanced",
            not_yet="ignored",
        ),
    ] = False
    steps: Annotated[int, Ge(1), Le(1000), Setting("Steps", "More steps take longer and often look finer.")] = 25
    guidance: Annotated[
        float,
        Ge(0),
        Le(100),
        Setting("Guidance", "How strictly the image follows the prompt; 1 switches it off."),
    ] = 7.5
    sampler: Annotated[
        str, *one_of(sampler_labels), Setting("Sampler", "How the noise is taken out.", level="advanced")
    ] = "ddim"
    inpainting: Annotated[
        bool,
        Setting(
            "Paint into an image",
            "Gives an inpainting model an image and a mask to fill.",
            level="advanced",
            not_yet="ignored",
        ),
    ] = False
    base_image: Annotated[
        str,
        Setting(
            "Image to paint into",
            "What is around the hole.",
            level="advanced",
            path_kind="file",
            applies_when=When("inpainting", (True,)),
        ),
    ] = ""
    mask_image: Annotated[
        str,
        Setting(
            "Mask to fill",
            "White where it is painted.",
            level="advanced",
            path_kind="file",
            applies_when=When("inpainting", (True,)),
        ),
    ] = ""


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
    skip_first: Annotated[
        Every,
        Setting(
            "No samples before",
            "Once this much of the run has passed, samples begin.",
            group="Samples",
            level="advanced",
            changeable_on_resume=True,
        ),
    ] = Every()
    without_average_too: Annotated[
        bool,
        Setting(
            "Also without the average",
            "Paints each sample a second time from the weights themselves, beside the one from their average.",
            group="Samples",
            level="advanced",
            applies_when=When("training.ema.mode", ("train_device", "temp_device")),
            changeable_on_resume=True,
            not_yet="ignored",
        ),
    ] = False
    to_tensorboard: Annotated[
        bool,
        Setting(
            "Samples in TensorBoard",
            "Writes samples to the TensorBoard logs, too.",
            group="Samples",
            level="advanced",
            applies_when=When("general.tensorboard", (True,)),
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
    prompts_file: Annotated[
        str,
        Setting(
            "Samples in a file",
            "A file of its own that holds the samples below, so that several configs can share them. It counts from "
            "the config's folder.",
            group="Samples",
            level="advanced",
            path_kind="file",
            empty_means="inside the config",
            changeable_on_resume=True,
        ),
    ] = ""
    prompts: Annotated[
        tuple[SamplePrompt, ...],
        Setting("Samples", "The images to paint.", group="Samples", changeable_on_resume=True),
    ] = ()
