"""A concept: a folder of images with captions, and how both are augmented."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from annotated_types import Interval

from modules.data.captions.settings import CAPTION_AUGMENTATION, CaptionChanges
from modules.data.image_settings import IMAGE_AUGMENTATION, ImageChanges
from modules.settings.conditions import USES_DENOISER
from modules.settings.field import Section, Setting, When, advanced_setting
from modules.settings.shared_types import UpTo1000
from modules.system.paths import from_root
from modules.system.problem import shorten

if TYPE_CHECKING:  # the window reads captions once a page shows them
    from modules.data.captions.sources import CaptionOrigin

Kind = Literal["training", "validation", "prior_prediction", "regularization", "prompts", "pairs", "validation_pairs"]
PAIR_KINDS = ("pairs", "validation_pairs")
VALIDATION_KINDS = ("validation", "validation_pairs")
DatasetKind = Literal["training", "validation"]
_CAPTIONS = "Captions"
_BALANCING = "Balancing"
_MAX_LABEL_CHARS = 80


class Concept(Section):
    """A folder of images and how it takes part."""

    name: Annotated[
        str,
        Setting("Name", "What this concept is called in lists and charts.", empty_means="the folder's name"),
    ] = ""
    path: Annotated[
        str,
        Setting(
            "Folder",
            "The folder that holds the images, or tar shards (WebDataset), Parquet or Arrow files with images, such as "
            "a saved Hugging Face data set. Also a single image or one of these files, or a data set of the hub: "
            "hf://datasets/owner/name, which is downloaded at the start. For prompts: a text file with one per line "
            "(lines that begin with # are left out), a .jsonl, .csv or .parquet file with a column of prompts, or a "
            "folder of such files.",
            path_kind="folder",
        ),
    ] = ""
    enabled: Annotated[bool, Setting("Enabled", "Whether the concept is used at all.")] = True
    kind: Annotated[
        Kind,
        Setting(
            "Concept type",
            "Training concepts are trained on. Validation concepts are only evaluated: the validation loss "
            "measures how well the model does on unseen images. Prior prediction concepts keep the model at its "
            "original predictions for their images and captions: the target is the prediction of the model as it was "
            "before any training, at the same noise and timestep. Regularization concepts hold images of the general "
            "class: each epoch trains on as many of them as on training images, in turn, with the loss weight of their "
            "concept. Prompts concepts have no images, for methods that train on images they sample themselves. "
            "Preference pairs hold a chosen and a rejected image for each caption, which Diffusion-DPO trains "
            "on: a folder with the subfolders chosen and rejected, in which the images of a pair have the same name, "
            "or a metadata file (.jsonl, .csv, .parquet) with the columns chosen, rejected and caption, or the columns "
            "of Pick-a-Pic. Validation pairs are only evaluated.",
            choice_labels={
                "training": "Training",
                "validation": "Validation",
                "prior_prediction": "Prior prediction",
                "regularization": "Regularization",
                "prompts": "Prompts",
                "pairs": "Preference pairs",
                "validation_pairs": "Validation pairs",
            },
        ),
    ] = "training"
    include_subfolders: Annotated[bool, Setting("Include subfolders", "Also uses the images in subfolders.")] = False
    excluded: Annotated[
        str,
        advanced_setting(
            "Excluded images",
            "Images that are left out, one per line: their paths within the folder, such as cat.png or garden/cat.png. "
            "Their files stay where they are. In the grid of images, a click on one offers to exclude it, and to use "
            "it again. For a pair, its chosen image.",
            multiline=True,
            applies_when=When(
                "kind", ("training", "validation", "prior_prediction", "regularization", "pairs", "validation_pairs")
            ),
        ),
    ] = ""
    caption_source: Annotated[
        Literal["text_file", "file_name", "one_file", "metadata", "fixed_text"],
        Setting(
            "Captions from",
            "Text file: cat.txt next to cat.png; each line is a caption. File name: the image's own name, with "
            "underscores read as spaces. One file, fixed text: the same captions for all images. Metadata file: "
            "metadata.jsonl, .csv or .parquet, with a row for each image; also JSON files of kohya, or one per image.",
            choice_labels={
                "text_file": "Text file next to the image",
                "file_name": "File name",
                "one_file": "One file for all",
                "metadata": "Metadata file",
                "fixed_text": "Fixed text",
            },
            group=_CAPTIONS,
            applies_when=USES_DENOISER,
        ),
    ] = "text_file"
    captions_file: Annotated[
        str,
        Setting(
            "Captions file",
            "A text file with the captions for all images of the concept, one per line.",
            path_kind="file",
            applies_when=When("caption_source", ("one_file",)),
            group=_CAPTIONS,
        ),
    ] = ""
    metadata_file: Annotated[
        str,
        Setting(
            "Metadata file",
            "A .jsonl, .csv, .parquet or .json file that names the images and has their captions; by default "
            "metadata.jsonl, .csv or .parquet in the folder or its subfolders.",
            path_kind="file",
            empty_means="the one in the folder",
            applies_when=When("caption_source", ("metadata",)),
            group=_CAPTIONS,
        ),
    ] = ""
    caption_columns: Annotated[
        str,
        advanced_setting(
            "Caption columns",
            "The columns with the captions in metadata files and in tables of prompts, separated by commas; each is a "
            "caption of the image.",
            empty_means="text, caption or prompt",
            group=_CAPTIONS,
            applies_when=USES_DENOISER,
        ),
    ] = ""
    caption_extension: Annotated[
        Literal[".txt", ".caption"],
        advanced_setting(
            "Caption file extension",
            "The extension of the text files next to the images.",
            applies_when=When("caption_source", ("text_file",)),
            group=_CAPTIONS,
        ),
    ] = ".txt"
    default_caption: Annotated[
        str,
        advanced_setting(
            "Default caption",
            "The caption of the images that have no text file; each line is one.",
            multiline=True,
            empty_means="no caption",
            applies_when=When("caption_source", ("text_file",)),
            group=_CAPTIONS,
        ),
    ] = ""
    fixed_caption: Annotated[
        str,
        Setting(
            "Fixed caption",
            "The caption of all images of the concept; each line is one.",
            multiline=True,
            applies_when=When("caption_source", ("fixed_text",)),
            group=_CAPTIONS,
        ),
    ] = ""
    balancing: Annotated[
        Literal["repeats", "samples"],
        advanced_setting(
            "Balancing strategy",
            "Whether the number of samples is set per image, or for the whole concept.",
            choice_labels={"repeats": "Repeats per image", "samples": "Samples per epoch"},
            group=_BALANCING,
        ),
    ] = "repeats"
    repeats: Annotated[
        float,
        *Interval(ge=0, le=10000),
        Setting(
            "Repeats",
            "How often each image is used per epoch. 2 uses all twice; 0.5 uses half of them, another half each epoch. "
            "For regularization concepts: how often, compared to other regularization concepts.",
            unit="times",
            applies_when=When("balancing", ("repeats",)),
            group=_BALANCING,
        ),
    ] = 1.0
    samples_per_epoch: Annotated[
        int,
        *Interval(ge=0, le=100_000_000),
        Setting(
            "Samples per epoch",
            "How many samples of the concept an epoch has, regardless of its number of images. The images take turns, "
            "in an order shuffled by the seed, so that over several epochs all are used equally often.",
            unit="images",
            applies_when=When("balancing", ("samples",)),
            group=_BALANCING,
        ),
    ] = 1
    loss_weight: Annotated[
        UpTo1000,
        advanced_setting("Loss weight", "How much these images count compared to other concepts.", group=_BALANCING),
    ] = 1.0
    image_variations: Annotated[
        int,
        *Interval(ge=1, le=10000),
        advanced_setting(
            "Image variations",
            "How many random augmentations of each image are cached; each use at a resolution takes the next one. "
            "Without the latent cache, every use is augmented anew.",
            group=IMAGE_AUGMENTATION,
        ),
    ] = 1
    text_variations: Annotated[
        int,
        *Interval(ge=1, le=10000),
        advanced_setting(
            "Text variations",
            "How many random augmentations of each caption are cached; each use of the image takes the next one. "
            "Captions that are not cached are augmented anew each time.",
            group=CAPTION_AUGMENTATION,
            applies_when=USES_DENOISER,
        ),
    ] = 1
    seed: Annotated[
        int | None,
        *Interval(ge=-(2**31), le=2**31 - 1),
        advanced_setting(
            "Augmentation seed",
            "The seed of the random augmentations of its images and captions, and of the order in which its images "
            "take turns.",
            empty_means="the run's",
        ),
    ] = None
    background: Annotated[
        str,
        advanced_setting(
            "Background colour",
            "The colour behind the transparent places of images: a name or a hexadecimal value such as #808080.",
        ),
    ] = "#ffffff"
    image: ImageChanges = ImageChanges.with_defaults()
    text: CaptionChanges = CaptionChanges.with_defaults()

    @property
    def label(self) -> str:
        """Its name in lists: the one that it was given, or else the name of its folder."""
        return self.name or Path(self.path).name or "no folder"

    def label_at(self, index: int) -> str:
        """Return its name in messages: that in lists, or its number while it has neither a name nor a folder."""
        is_known = self.name or Path(self.path).name
        return shorten(self.label, max_chars=_MAX_LABEL_CHARS) if is_known else f"number {index + 1}"

    @property
    def dataset_kind(self) -> DatasetKind:
        """The dataset that its images belong to: the training or the validation dataset."""
        return "validation" if self.kind in VALIDATION_KINDS else "training"

    @property
    def holds_pairs(self) -> bool:
        """Whether its source holds pairs of a chosen and a rejected image."""
        return self.kind in PAIR_KINDS

    @property
    def caption_origin(self) -> "CaptionOrigin":
        """The origin of its captions."""
        from modules.data.captions.sources import CaptionOrigin

        named = {"one_file": self.captions_file, "metadata": self.metadata_file}.get(self.caption_source, "")
        file = from_root(named) if named or self.caption_source == "one_file" else None
        columns = tuple(c.strip() for c in self.caption_columns.split(",") if c.strip())
        text = self.default_caption if self.caption_source == "text_file" else self.fixed_caption
        return CaptionOrigin(self.caption_source, file, self.caption_extension, text, columns)

    @property
    def excluded_names(self) -> frozenset[str]:
        """The paths of the excluded images within its folder."""
        return frozenset(name for line in self.excluded.splitlines() if (name := line.strip()))

    @property
    def has_images(self) -> bool:
        """Whether it has images, and not only prompts."""
        return self.kind != "prompts"

    @property
    def zero_field(self) -> Literal["", "repeats", "samples_per_epoch"]:
        """The field whose 0 leaves its images unused; empty if they are used."""
        field: Literal["repeats", "samples_per_epoch"]
        field = "samples_per_epoch" if self.balancing == "samples" else "repeats"
        return "" if getattr(self, field) else field
