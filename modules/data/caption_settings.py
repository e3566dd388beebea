"""Caption augmentation."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge, Le

from modules.settings.field import Section, Setting, When

_CAPTIONS = "Caption augmentation"


class CaptionChanges(Section):
    """Augmentation of a concept's captions. A tag is the text between two delimiters."""

    shuffle_tags: Annotated[
        bool,
        Setting(
            "Shuffle tags",
            "Shuffles the order of a caption's tags each time.",
            group=_CAPTIONS,
            level="advanced",
            not_yet="refused",
        ),
    ] = False
    tag_delimiter: Annotated[
        str,
        Setting("Tag delimiter", "What separates two tags.", group=_CAPTIONS, level="advanced"),
    ] = ","
    keep_tags_count: Annotated[
        int,
        Ge(0),
        Le(1000),
        Setting(
            "Keep tags count",
            "How many tags at the start of a caption are neither shuffled nor dropped.",
            unit="tags",
            group=_CAPTIONS,
            level="advanced",
        ),
    ] = 1
    tag_dropout: Annotated[
        bool,
        Setting(
            "Tag dropout",
            "Randomly drops tags from captions.",
            group=_CAPTIONS,
            level="advanced",
            not_yet="refused",
        ),
    ] = False
    tag_dropout_mode: Annotated[
        Literal["full", "random", "random_weighted"],
        Setting(
            "Tag dropout mode",
            "Full drops all tags at once, random each on its own, random weighted the later ones more often.",
            group=_CAPTIONS,
            level="advanced",
            applies_when=When("tag_dropout", (True,)),
            choice_labels={"full": "Full", "random": "Random", "random_weighted": "Random weighted"},
        ),
    ] = "full"
    tag_dropout_probability: Annotated[
        float,
        Ge(0),
        Le(1),
        Setting(
            "Tag dropout probability",
            "The probability that tags are dropped.",
            group=_CAPTIONS,
            level="advanced",
            applies_when=When("tag_dropout", (True,)),
        ),
    ] = 0.0
    special_tags_mode: Annotated[
        Literal["none", "blacklist", "whitelist"],
        Setting(
            "Special tags mode",
            "Whether only the special tags may be dropped (blacklist), or never (whitelist).",
            group=_CAPTIONS,
            level="advanced",
            applies_when=When("tag_dropout", (True,)),
            choice_labels={"none": "None", "blacklist": "Blacklist", "whitelist": "Whitelist"},
        ),
    ] = "none"
    special_tags: Annotated[
        str,
        Setting(
            "Special tags",
            "The tags, separated by the delimiter, or a .txt or .csv file that lists them.",
            group=_CAPTIONS,
            level="advanced",
            applies_when=When("special_tags_mode", ("blacklist", "whitelist")),
        ),
    ] = ""
    special_tags_regex: Annotated[
        bool,
        Setting(
            "Special tags are regular expressions",
            "Treats the special tags as regular expressions.",
            group=_CAPTIONS,
            level="advanced",
            applies_when=When("special_tags_mode", ("blacklist", "whitelist")),
        ),
    ] = False
    randomize_capitalization: Annotated[
        bool,
        Setting(
            "Randomize capitalization",
            "Randomly changes the capitalization of tags.",
            group=_CAPTIONS,
            level="advanced",
            not_yet="refused",
        ),
    ] = False
    capitalization_modes: Annotated[
        str,
        Setting(
            "Capitalization modes",
            "Any of capslock, title, first and random, separated by commas; one is chosen each time.",
            group=_CAPTIONS,
            level="advanced",
            applies_when=When("randomize_capitalization", (True,)),
        ),
    ] = "capslock, title, first, random"
    capitalization_probability: Annotated[
        float,
        Ge(0),
        Le(1),
        Setting(
            "Capitalization probability",
            "The probability that a tag is changed.",
            group=_CAPTIONS,
            level="advanced",
            applies_when=When("randomize_capitalization", (True,)),
        ),
    ] = 0.0
    lowercase_first: Annotated[
        bool,
        Setting(
            "Force lowercase first",
            "Converts the caption to lowercase first.",
            group=_CAPTIONS,
            level="advanced",
            applies_when=When("randomize_capitalization", (True,)),
        ),
    ] = False
