"""Pictures and captions: concepts, sizes, caches."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge, Le, MinLen

from modules.config.field import Section, Setting, When


class Concept(Section):
    """A folder of pictures and how it takes part."""

    name: Annotated[
        str,
        Setting("Name", "What this concept is called in lists and charts.", empty_means="the folder's name"),
    ] = ""
    path: Annotated[str, Setting("Folder", "The folder that holds the pictures.", path_kind="folder")] = ""
    enabled: Annotated[bool, Setting("Enabled", "Whether the concept takes part at all.")] = True
    kind: Annotated[
        Literal["training", "validation"],
        Setting(
            "Used for",
            "Training concepts are learned from. Validation concepts are only measured, so that the "
            "validation loss shows how well the model does on pictures it has never seen.",
            choice_labels={"training": "Training", "validation": "Validation"},
        ),
    ] = "training"
    include_subfolders: Annotated[
        bool, Setting("Include sub-folders", "Also takes the pictures in the folders below.")
    ] = False
    caption_source: Annotated[
        Literal["text_file", "file_name"],
        Setting(
            "Captions from",
            "Text file: cat.txt beside cat.png; where it has several lines, one is drawn each time. File name: "
            "the picture's own name, with underscores read as spaces.",
            choice_labels={"text_file": "Text file beside the picture", "file_name": "File name"},
        ),
    ] = "text_file"
    repeats: Annotated[
        float,
        Ge(0),
        Le(10000),
        Setting(
            "Repeats",
            "How often each picture is seen in an epoch. 2 shows all twice; 0.5 shows half of them, another "
            "half each epoch.",
            unit="times",
        ),
    ] = 1.0
    loss_weight: Annotated[
        float,
        Ge(0),
        Le(1000),
        Setting("Loss weight", "How much these pictures count against those of other concepts.", level="advanced"),
    ] = 1.0


class Data(Section):
    """Sizes, captions and caches, for all concepts alike."""

    resolution_px: Annotated[
        tuple[Annotated[int, Ge(32), Le(8192)], ...],
        MinLen(1),
        Setting(
            "Resolution",
            "The side of a square picture of the size to train at; other shapes get the same area. Several, "
            "as in 512, 768, train each picture at each of them in turn.",
            unit="px",
            group="Size",
        ),
    ] = (512,)
    aspect_buckets: Annotated[
        bool,
        Setting(
            "Keep the shape of pictures",
            "Groups pictures of like shape, so that little is cropped away. Off: every picture is cropped to a square.",
            group="Size",
        ),
    ] = True
    bucket_step_px: Annotated[
        int,
        Ge(8),
        Le(256),
        Setting(
            "Size step",
            "Widths and heights are multiples of this.",
            unit="px",
            group="Size",
            level="advanced",
            applies_when=When("aspect_buckets", (True,)),
        ),
    ] = 64
    max_aspect: Annotated[
        float,
        Ge(1),
        Le(8),
        Setting(
            "Longest shape",
            "The longest side may be this many times the shorter one; longer pictures are cropped to it.",
            unit="times",
            group="Size",
            level="advanced",
            applies_when=When("aspect_buckets", (True,)),
        ),
    ] = 2.0
    caption_dropout: Annotated[
        float,
        Ge(0),
        Le(1),
        Setting(
            "Caption dropout",
            "The share of pictures that are shown with an empty caption; a little (0.05 to 0.1) helps guidance.",
            group="Captions",
        ),
    ] = 0.0
    latent_cache: Annotated[
        bool,
        Setting(
            "Cache pictures",
            "Encodes every picture once and keeps the result on disk: much faster, and the encoder needs no "
            "memory while training.",
            group="Caches",
        ),
    ] = True
    text_cache: Annotated[
        bool,
        Setting(
            "Cache captions",
            "Encodes every caption once, as long as the text encoder itself is not trained.",
            group="Caches",
        ),
    ] = True
    verify_cache: Annotated[
        bool,
        Setting(
            "Re-read every picture",
            "Compares the content of every picture with the cache instead of trusting size and date.",
            group="Caches",
            level="advanced",
            changeable_on_resume=True,
        ),
    ] = False
    loader_threads: Annotated[
        int,
        Ge(1),
        Le(64),
        Setting(
            "Loader threads",
            "How many pictures are read at the same time.",
            group="Caches",
            level="advanced",
            changeable_on_resume=True,
        ),
    ] = 2
