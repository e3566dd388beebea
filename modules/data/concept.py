"""A concept: a folder of images with captions, and what is changed in both when they are shown."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge, Le

from modules.data.caption_settings import CaptionChanges
from modules.data.image_settings import ImageChanges
from modules.settings.field import Section, Setting, When


class Concept(Section):
    """A folder of images and how it takes part."""

    name: Annotated[
        str,
        Setting("Name", "What this concept is called in lists and charts.", empty_means="the folder's name"),
    ] = ""
    path: Annotated[str, Setting("Folder", "The folder that holds the images.", path_kind="folder")] = ""
    enabled: Annotated[bool, Setting("Enabled", "Whether the concept takes part at all.")] = True
    kind: Annotated[
        Literal["training", "validation", "prior_prediction"],
        Setting(
            "Used for",
            "Training concepts are learned from. Validation concepts are only measured, so that the "
            "validation loss shows how well the model does on images it has never seen. Prior concepts hold the "
            "model to what it made of such images before.",
            choice_labels={"training": "Training", "validation": "Validation", "prior_prediction": "Prior"},
            not_yet_choices=frozenset({"prior_prediction"}),
        ),
    ] = "training"
    include_subfolders: Annotated[
        bool, Setting("Include sub-folders", "Also takes the images in the folders below.")
    ] = False
    caption_source: Annotated[
        Literal["text_file", "file_name", "one_file"],
        Setting(
            "Captions from",
            "Text file: cat.txt beside cat.png; where it has several lines, one is drawn each time. File name: "
            "the image's own name, with underscores read as spaces. One file: the same captions for all images.",
            choice_labels={
                "text_file": "Text file beside the image",
                "file_name": "File name",
                "one_file": "One file for all",
            },
        ),
    ] = "text_file"
    captions_file: Annotated[
        str,
        Setting(
            "Captions file",
            "A text file with the captions for all images of the concept, one a line.",
            path_kind="file",
            applies_when=When("caption_source", ("one_file",)),
        ),
    ] = ""
    balancing: Annotated[
        Literal["repeats", "samples"],
        Setting(
            "Counted by",
            "How often its images are shown is said for each image, or for all of them together.",
            level="advanced",
            choice_labels={"repeats": "Repeats of each image", "samples": "Images an epoch"},
            not_yet_choices=frozenset({"samples"}),
        ),
    ] = "repeats"
    repeats: Annotated[
        float,
        Ge(0),
        Le(10000),
        Setting(
            "Repeats",
            "How often each image is seen in an epoch. 2 shows all twice; 0.5 shows half of them, another "
            "half each epoch.",
            unit="times",
            applies_when=When("balancing", ("repeats",)),
        ),
    ] = 1.0
    samples_per_epoch: Annotated[
        int,
        Ge(0),
        Le(100_000_000),
        Setting(
            "Images an epoch",
            "How many images of the concept are shown in an epoch, whatever it holds.",
            unit="images",
            applies_when=When("balancing", ("samples",)),
        ),
    ] = 1
    loss_weight: Annotated[
        float,
        Ge(0),
        Le(1000),
        Setting("Loss weight", "How much these images count against those of other concepts.", level="advanced"),
    ] = 1.0
    image_variations: Annotated[
        int,
        Ge(1),
        Le(10000),
        Setting(
            "Variations of images",
            "How many versions of each image are cached where it is changed at random; they are shown in turn.",
            level="advanced",
            not_yet="ignored",
        ),
    ] = 1
    text_variations: Annotated[
        int,
        Ge(1),
        Le(10000),
        Setting(
            "Variations of captions",
            "How many versions of each caption are cached where it is changed at random; they are shown in turn.",
            level="advanced",
            not_yet="ignored",
        ),
    ] = 1
    seed: Annotated[
        int | None,
        Ge(-(2**31)),
        Le(2**31 - 1),
        Setting(
            "Seed of its changes",
            "What the random changes of its images and captions follow from; without such changes, nothing does.",
            level="advanced",
            empty_means="the run's",
        ),
    ] = None
    image: ImageChanges = ImageChanges()
    text: CaptionChanges = CaptionChanges()
