"""The files that a run writes: the exported model, and the backups."""

from typing import Annotated, ClassVar, Literal

from annotated_types import Interval

from modules.settings.conditions import USES_DENOISER
from modules.settings.every import Every
from modules.settings.field import Section, Setting, When, advanced_setting


class Output(Section):
    """The file that a finished run writes."""

    group: ClassVar[str] = "Result"
    changeable_on_resume: ClassVar[bool] = True

    destination: Annotated[
        str,
        Setting(
            "Save to",
            "The result's file, or the folder of a model in diffusers format. It is written when the run succeeds. If "
            "something is there that the run did not write, its result gets a number, such as lora-2.",
            path_kind="save",
        ),
    ] = "models/lora.safetensors"
    format: Annotated[
        Literal["auto", "kohya", "comfyui", "diffusers"],
        Setting(
            "Format",
            "Automatic: the format of the model family that most programs load completely, kohya's or ComfyUI's. A "
            "LoRA of Stable Diffusion in kohya format loads completely in ComfyUI, A1111, Forge and diffusers; in "
            "diffusers format it loads completely in diffusers alone: ComfyUI ignores the attention of the UNet, A1111 "
            "and Forge load nothing. ComfyUI's format has the names of ComfyUI's own models (diffusion_model., "
            "text_encoders.), as other trainers of flow models write them. Each saved file is reported with the "
            "programs that load it.",
            choice_labels={
                "auto": "Automatic",
                "kohya": "kohya",
                "comfyui": "ComfyUI",
                "diffusers": "diffusers / PEFT",
            },
            applies_when=When("training.trains", ("adapter",)),
        ),
    ] = "auto"
    model_format: Annotated[
        Literal["single_file", "diffusers"],
        Setting(
            "Model format",
            "A single file loads in ComfyUI, A1111, Forge and diffusers; of flow-matching models it contains the "
            "denoiser alone. The diffusers format is a folder with a file for each part of the model.",
            choice_labels={"single_file": "Single file (most programs)", "diffusers": "diffusers folder"},
            applies_when=When("training.trains", ("full", "vae")),
        ),
    ] = "single_file"
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16", "float8", "scaled_float8"],
        Setting(
            "Output dtype",
            "Most shared files use float16, which is half the size of float32. float8 (e4m3) halves it again and loses "
            "detail: of a model only the UNet is in float8, which ComfyUI, Forge, A1111 and diffusers load; of a LoRA "
            "all, scaled by its alpha. float8 with scales loses less: each matrix has a scale, which ComfyUI reads. "
            "It is for fine-tunes of flow models in a single file.",
            choice_labels={
                "float32": "float32",
                "bfloat16": "bfloat16",
                "float16": "float16",
                "float8": "float8",
                "scaled_float8": "float8 with scales (ComfyUI)",
            },
        ),
    ] = "float16"
    trigger_words: Annotated[
        str,
        Setting(
            "Trigger words",
            "The words that activate what was trained. Written to the file's metadata, where other programs show them.",
            empty_means="none",
            applies_when=USES_DENOISER,
        ),
    ] = ""
    thumbnail: Annotated[
        bool,
        advanced_setting(
            "Thumbnail",
            "Puts a small copy of the newest sample into the file's metadata. A1111, Forge and others show it as the "
            "cover of a LoRA.",
        ),
    ] = False
    never_replace: Annotated[
        bool,
        advanced_setting(
            "Prevent overwrites",
            "Refuses to start if the result exists already, instead of giving the new one a number. If it appears "
            "during the run, the result stays in the run's save folder.",
        ),
    ] = False
    embed_config: Annotated[
        Literal["none", "settings", "all"],
        advanced_setting(
            "Include training config",
            "Whether the file includes the settings it was trained with. Settings: without concepts, sample prompts, "
            "notes and folders; of other files only their names. All: everything, with the folders' paths.",
            choice_labels={"none": "None", "settings": "Settings", "all": "Settings, concepts and samples"},
        ),
    ] = "settings"
    embed_dataset: Annotated[
        Literal["none", "counts", "names", "tags"],
        advanced_setting(
            "Include dataset facts",
            "What a LoRA's file contains about the training images, for the cards of A1111, Forge and others. Counts: "
            "images, repeats and buckets, with numbered concepts. Names: also the names of the concepts or their "
            "folders. Tags: also every tag of the captions and how often it occurs.",
            choice_labels={"none": "None", "counts": "Counts", "names": "Counts and names", "tags": "Counts and tags"},
            applies_when=When("training.trains", ("adapter",)),
        ),
    ] = "counts"


class Backup(Section):
    """Backups, from which a run can be resumed, and saves, which other programs can load."""

    changeable_on_resume: ClassVar[bool] = True

    every: Annotated[
        Every,
        Setting(
            "Back up every",
            "How often a backup is written, from which the run can resume.",
            group="Backups",
        ),
    ] = Every(n=30, unit="minute")
    keep: Annotated[
        int,
        *Interval(ge=0, le=1000),
        Setting(
            "Rolling backups",
            "Older backups of the same run are removed; 0 keeps all.",
            unit="backups",
            group="Backups",
        ),
    ] = 3
    at_end: Annotated[
        bool,
        Setting(
            "Back up at the end",
            "Lets a finished run resume later, for example with more epochs.",
            group="Backups",
        ),
    ] = True
    save_every: Annotated[
        Every,
        Setting(
            "Save every",
            "How often the model is saved to the run's save folder, to compare and choose from.",
            group="Saves",
        ),
    ] = Every()
    save_skip_first: Annotated[
        Every,
        advanced_setting(
            "Save skip first",
            "Saving begins once this much of the run has passed.",
            is_span=True,
            group="Saves",
        ),
    ] = Every()
    save_prefix: Annotated[
        str,
        advanced_setting(
            "Save file name prefix",
            "The prefix of the names of saved files.",
            group="Saves",
            empty_means="the name of the result",
        ),
    ] = ""
