"""Validation and samples during a run."""

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Interval, Le, MultipleOf

from modules.settings.conditions import READS_REFERENCES, USES_DENOISER
from modules.settings.every import Every
from modules.settings.field import Section, Setting, When, advanced_setting, one_of
from modules.settings.shared_types import CountTo1000, UpTo100
from modules.system.factories import late

_SAMPLERS = "modules.sampling.registry"


class Validation(Section):
    """The loss on images that are not trained on."""

    group: ClassVar[str] = "Validation"
    changeable_on_resume: ClassVar[bool] = True

    every: Annotated[
        Every,
        Setting("Validate every", "How often the loss on the validation concepts is measured."),
    ] = Every()
    num_timesteps: Annotated[
        int,
        *Interval(ge=1, le=100),
        advanced_setting(
            "Validation timesteps",
            "At how many fixed timesteps each image is evaluated. More give a steadier loss.",
            applies_when=USES_DENOISER,
        ),
    ] = 4
    keep_best: Annotated[
        bool,
        Setting(
            "Keep best checkpoint",
            "Whenever the validation loss reaches a new low, the model is saved in the run's save folder "
            'as "...-best", replacing the previous one. The validation before the first step does not count. Without '
            "validation it has no effect.",
        ),
    ] = True
    result: Annotated[
        Literal["last", "best"],
        Setting(
            "Result",
            "Which model becomes the result when the run ends: the one after the last step, or the one "
            "with the lowest validation loss.",
            choice_labels={"last": "Last step", "best": "Best checkpoint"},
            applies_when=When("keep_best", (True,)),
        ),
    ] = "last"
    early_stopping_patience: Annotated[
        int,
        *Interval(ge=0, le=10_000),
        Setting(
            "Early stopping patience",
            "The run saves and ends after this many validations in a row without a new best. 0 never stops early.",
            unit="validations",
        ),
    ] = 0


REFERENCE_IMAGES = ("reference_image", "reference_image_2", "reference_image_3")
"""The settings of the reference images of a sample, in their order."""


class SamplePrompt(Section):
    """A prompt to sample during training, to see its progress."""

    enabled: Annotated[bool, Setting("Enabled", "Whether this sample is generated.")] = True
    prompt: Annotated[str, Setting("Prompt", "What the image should show.", multiline=True)] = ""
    negative_prompt: Annotated[str, Setting("Negative prompt", "What the image should not show.", multiline=True)] = ""
    width_px: Annotated[int, Ge(8), Le(8192), MultipleOf(8), Setting("Width", "Of the image.", unit="px")] = 512
    height_px: Annotated[int, Ge(8), Le(8192), MultipleOf(8), Setting("Height", "Of the image.", unit="px")] = 512
    seed: Annotated[
        int,
        *Interval(ge=0, le=2**63 - 1),
        Setting("Seed", "The same seed gives the same image from the same weights."),
    ] = 42
    random_seed: Annotated[
        bool, advanced_setting("Random seed", "Uses another seed each time; progress is then hard to tell from chance.")
    ] = False
    steps: Annotated[CountTo1000, Setting("Steps", "Denoising steps. More take longer and often look finer.")] = 25
    guidance: Annotated[
        UpTo100, Setting("Guidance", "Guidance scale: how closely the image follows the prompt; 1 switches it off.")
    ] = 7.5
    sampler: Annotated[
        str,
        *one_of(late(f"{_SAMPLERS}:sampler_labels"), late(f"{_SAMPLERS}:sampler_help")),
        advanced_setting("Sampler", "", help_from=late(f"{_SAMPLERS}:help_on_all")),
    ] = "ddim"
    inpainting: Annotated[
        bool,
        Setting(
            "Inpaint",
            "Inpaints a base image where a mask is white. Otherwise the whole image is generated.",
            applies_when=When("model.variant", ("inpainting",)),
        ),
    ] = False
    base_image: Annotated[
        str,
        Setting(
            "Base image",
            "The image to inpaint. It is resized to the size of the sample.",
            path_kind="file",
            applies_when=When("inpainting", (True,)),
        ),
    ] = ""
    mask_image: Annotated[
        str,
        Setting(
            "Mask image",
            "White where the base image is inpainted, black where it is kept.",
            path_kind="file",
            applies_when=When("inpainting", (True,)),
        ),
    ] = ""
    depth_image: Annotated[
        str,
        Setting(
            "Depth map",
            "For depth models: a gray image, brighter where things are nearer.",
            path_kind="file",
            empty_means="flat",
            applies_when=When("model.variant", ("depth",)),
        ),
    ] = ""
    reference_image: Annotated[
        str,
        Setting(
            "Reference image",
            "The image that the prompt edits. It gets the size that images of the data get.",
            path_kind="file",
            empty_means="none: from the prompt alone",
            applies_when=READS_REFERENCES,
        ),
    ] = ""
    reference_image_2: Annotated[
        str,
        Setting(
            "Second reference image",
            "A further image that the prompt refers to, such as a garment or a style.",
            path_kind="file",
            empty_means="none",
            applies_when=READS_REFERENCES,
        ),
    ] = ""
    reference_image_3: Annotated[
        str,
        Setting(
            "Third reference image",
            "A further image that the prompt refers to.",
            path_kind="file",
            empty_means="none",
            applies_when=READS_REFERENCES,
        ),
    ] = ""

    @property
    def reference_images(self) -> tuple[str, ...]:
        """The files of its reference images, in their order, without the empty ones."""
        given: Iterator[str] = (getattr(self, name) for name in REFERENCE_IMAGES)
        return tuple(file.strip() for file in given if file.strip())


class Sampling(Section):
    """When samples are generated, and how they are kept."""

    group: ClassVar[str] = "Samples"
    changeable_on_resume: ClassVar[bool] = True

    every: Annotated[Every, Setting("Sample every", "How often samples are generated.")] = Every(n=1, unit="epoch")
    model: Annotated[
        str,
        advanced_setting(
            "Sampling model",
            "A model to sample with in place of the base model: the distilled one that the result will be used with, "
            "such as a Turbo, with the trained adapter on top. A folder, a repository, a checkpoint or the file of a "
            "denoiser; only the denoiser is read of it. It waits in the computer's memory, and takes the base model's "
            "place on the GPU while images are sampled. Validation stays on the base model.",
            path_kind="model",
            empty_means="the base model",
            applies_when=USES_DENOISER,
        ),
    ] = ""
    at_start: Annotated[bool, Setting("Sample at start", "Also samples before the first step.")] = True
    at_end: Annotated[bool, Setting("Sample at end", "Also samples after the last step.")] = True
    skip_first: Annotated[
        Every,
        advanced_setting("Sample skip first", "Sampling begins once this much of the run has passed.", is_span=True),
    ] = Every()
    also_without_ema: Annotated[
        bool,
        advanced_setting(
            "Also sample without EMA",
            "Generates each sample a second time with the plain weights, besides the one with EMA.",
            applies_when=When("training.ema.mode", ("train_device", "temp_device")),
        ),
    ] = False
    to_tensorboard: Annotated[
        bool,
        advanced_setting(
            "Samples in TensorBoard",
            "Also writes samples to the TensorBoard logs.",
            applies_when=When("general.tensorboard", (True,)),
        ),
    ] = True
    image_format: Annotated[
        Literal["png", "jpg"],
        advanced_setting(
            "File format",
            "PNG is lossless, JPG smaller.",
            choice_labels={"png": "PNG", "jpg": "JPG"},
        ),
    ] = "png"
    wildcards_dir: Annotated[
        str,
        advanced_setting(
            "Wildcards folder",
            "The text files of wildcards: in sample prompts, __colour__ stands for a line of colour.txt there, and "
            "{red|blue} for one of its choices. The seed of the sample decides.",
            path_kind="folder",
            empty_means="none",
        ),
    ] = "wildcards"
    prompts_file: Annotated[
        str,
        advanced_setting(
            "Samples in a file",
            "A separate file with the sample prompts, so that several configs can share them. Relative to "
            "the config's folder.",
            path_kind="file",
            empty_means="inside the config",
            applies_when=USES_DENOISER,
        ),
    ] = ""
    prompts: Annotated[
        tuple[SamplePrompt, ...],
        Setting("Samples", "The prompts to sample.", applies_when=USES_DENOISER),
    ] = ()
