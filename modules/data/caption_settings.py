"""What is done to captions before they are learned from."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge, Le

from modules.settings.field import Section, Setting, When

_CAPTIONS = "Changes to captions"


class CaptionChanges(Section):
    """What is done to a concept's captions before they are learned from. A tag is what stands between delimiters."""

    shuffle_tags: Annotated[
        bool,
        Setting(
            "Shuffle tags",
            "Brings the tags of a caption into another order each time.",
            group=_CAPTIONS,
            level="advanced",
            not_yet="refused",
        ),
    ] = False
    tag_delimiter: Annotated[
        str,
        Setting("Between tags", "What stands between two tags.", group=_CAPTIONS, level="advanced"),
    ] = ","
    keep_tags: Annotated[
        int,
        Ge(0),
        Le(1000),
        Setting(
            "Tags that stay first",
            "The first tags of a caption that are neither moved nor left out.",
            unit="tags",
            group=_CAPTIONS,
            level="advanced",
        ),
    ] = 1
    drop_tags: Annotated[
        bool,
        Setting(
            "Leave out tags",
            "Shows captions without some of their tags.",
            group=_CAPTIONS,
            level="advanced",
            not_yet="refused",
        ),
    ] = False
    drop_mode: Annotated[
        Literal["all", "each", "later_rather"],
        Setting(
            "Leave out: which",
            "All that may go at once, each by itself, or each by itself and the later ones more often.",
            group=_CAPTIONS,
            level="advanced",
            applies_when=When("drop_tags", (True,)),
            choice_labels={"all": "All at once", "each": "Each by itself", "later_rather": "Later ones rather"},
        ),
    ] = "all"
    drop_probability: Annotated[
        float,
        Ge(0),
        Le(1),
        Setting(
            "Leave out: how often",
            "The share of the times it is done.",
            group=_CAPTIONS,
            level="advanced",
            applies_when=When("drop_tags", (True,)),
        ),
    ] = 0.0
    special_tags_mode: Annotated[
        Literal["none", "blacklist", "whitelist"],
        Setting(
            "Leave out: special tags",
            "Whether some tags are the only ones that may go, or may never go.",
            group=_CAPTIONS,
            level="advanced",
            applies_when=When("drop_tags", (True,)),
            choice_labels={"none": "No special tags", "blacklist": "Only these go", "whitelist": "These never go"},
        ),
    ] = "none"
    special_tags: Annotated[
        str,
        Setting(
            "Special tags",
            "The tags themselves with the delimiter between them, or a .txt or .csv file that holds them.",
            group=_CAPTIONS,
            level="advanced",
            applies_when=When("special_tags_mode", ("blacklist", "whitelist")),
        ),
    ] = ""
    special_tags_regex: Annotated[
        bool,
        Setting(
            "Special tags are patterns",
            "Reads them as regular expressions.",
            group=_CAPTIONS,
            level="advanced",
            applies_when=When("special_tags_mode", ("blacklist", "whitelist")),
        ),
    ] = False
    change_capitals: Annotated[
        bool,
        Setting(
            "Change capitals",
            "Writes captions in capitals in one way or another.",
            group=_CAPTIONS,
            level="advanced",
            not_yet="refused",
        ),
    ] = False
    capital_modes: Annotated[
        str,
        Setting(
            "Capitals: how",
            "Any of capslock, title, first and random, separated by commas; one of them is drawn each time.",
            group=_CAPTIONS,
            level="advanced",
            applies_when=When("change_capitals", (True,)),
        ),
    ] = "capslock, title, first, random"
    capital_probability: Annotated[
        float,
        Ge(0),
        Le(1),
        Setting(
            "Capitals: how often",
            "The share of the tags that are changed.",
            group=_CAPTIONS,
            level="advanced",
            applies_when=When("change_capitals", (True,)),
        ),
    ] = 0.0
    lower_case: Annotated[
        bool,
        Setting(
            "Capitals: small letters first",
            "Writes everything in small letters before that.",
            group=_CAPTIONS,
            level="advanced",
            applies_when=When("change_capitals", (True,)),
        ),
    ] = False
