"""Caption augmentation."""

import random
from typing import Annotated, ClassVar, Literal

from annotated_types import Interval

from modules.settings.conditions import USES_DENOISER
from modules.settings.field import Section, When, advanced_setting
from modules.settings.shared_types import Fraction

CaptionChoice = Literal["random", "in_turn", "first"]


def choose_line(num_lines: int, choice: CaptionChoice, generator: random.Random, *, use: int) -> int:
    """Return the index of a caption for one use of an image; `use` counts its uses in the run, from 0.

    "in_turn" goes through all captions before one is used again. There must be at least one.
    """
    match choice:
        case "first":
            return 0
        case "in_turn":
            return use % num_lines
        case _:
            return generator.choice(range(num_lines))


def lines_in_use(num_lines: int, choice: CaptionChoice) -> range:
    """Return the indices of the captions that may be chosen."""
    return range(min(num_lines, 1) if choice == "first" else num_lines)


CAPTION_AUGMENTATION = "Caption augmentation"


class CaptionChanges(Section):
    """Augmentation of a concept's captions. A tag is the text between two delimiters.

    The fields are in the order of the operations in `modules/data/captions/operations.py`.
    """

    group: ClassVar[str] = CAPTION_AUGMENTATION
    applies_when: ClassVar[When | None] = USES_DENOISER

    choice: Annotated[
        CaptionChoice,
        advanced_setting(
            "Caption choice",
            "Which caption is used where an image has several: a random one, all of them in turn, or always the first. "
            "It is then changed in this order: wildcards, replacements, tag dropout, capitalization, shuffling, "
            "trigger word, prefix and suffix.",
            choice_labels={"random": "Random", "in_turn": "In turn", "first": "First"},
        ),
    ] = "random"
    wildcards: Annotated[
        bool,
        advanced_setting(
            "Wildcards", "Replaces alternatives in captions, such as {red|blue}, by one of them at random."
        ),
    ] = False
    replacements: Annotated[
        str,
        advanced_setting(
            "Replacements",
            "Words or phrases to replace in captions, one per line: old => new. Whole words only, in this order.",
            multiline=True,
            empty_means="none",
        ),
    ] = ""
    tag_delimiter: Annotated[str, advanced_setting("Tag delimiter", "What separates two tags.")] = ","
    keep_tags_count: Annotated[
        int,
        *Interval(ge=0, le=1000),
        advanced_setting(
            "Keep tags count", "How many tags at the start of a caption are neither shuffled nor dropped.", unit="tags"
        ),
    ] = 1
    keep_tags_separator: Annotated[
        str,
        advanced_setting(
            "Keep tags separator",
            "A mark in captions between tags that are kept and others, such as |||. Tags before it are kept at the "
            "start, those after a second one at the end. Captions without it keep the first tags as counted.",
            empty_means="none",
        ),
    ] = ""
    tag_group_separator: Annotated[
        str,
        advanced_setting(
            "Tag group separator",
            "A mark in captions, such as ;;;, between tags that stay together. The tag delimiter replaces it.",
            empty_means="none",
        ),
    ] = ""
    tag_dropout: Annotated[bool, advanced_setting("Tag dropout", "Randomly drops tags from captions.")] = False
    tag_dropout_mode: Annotated[
        Literal["full", "random", "random_weighted"],
        advanced_setting(
            "Tag dropout mode",
            "Full drops all tags at once, random each on its own, random weighted the later ones more often: the "
            "probability grows up to the last tag.",
            applies_when=When("tag_dropout", (True,)),
            choice_labels={"full": "Full", "random": "Random", "random_weighted": "Random weighted"},
        ),
    ] = "full"
    tag_dropout_probability: Annotated[
        Fraction,
        advanced_setting(
            "Tag dropout probability",
            "The probability that tags are dropped.",
            applies_when=When("tag_dropout", (True,)),
        ),
    ] = 0.0
    special_tags_mode: Annotated[
        Literal["none", "blacklist", "whitelist"],
        advanced_setting(
            "Special tags mode",
            "Whether only the special tags may be dropped (blacklist), or never (whitelist).",
            applies_when=When("tag_dropout", (True,)),
            choice_labels={"none": "None", "blacklist": "Blacklist", "whitelist": "Whitelist"},
        ),
    ] = "none"
    special_tags: Annotated[
        str,
        advanced_setting(
            "Special tags",
            "The tags, separated by the delimiter, or a .txt or .csv file with one on each line.",
            applies_when=When("special_tags_mode", ("blacklist", "whitelist")),
        ),
    ] = ""
    special_tags_regex: Annotated[
        bool,
        advanced_setting(
            "Special tags are regular expressions",
            "Treats the special tags as regular expressions that match a whole tag: photo.* is any tag that starts so.",
            applies_when=When("special_tags_mode", ("blacklist", "whitelist")),
        ),
    ] = False
    randomize_capitalization: Annotated[
        bool,
        advanced_setting(
            "Randomize capitalization",
            "Randomly changes the capitalization of tags. The tokenizer of SD and SDXL reads all letters as lowercase, "
            "so their images do not depend on it.",
        ),
    ] = False
    capitalization_modes: Annotated[
        str,
        advanced_setting(
            "Capitalization modes",
            "Any of capslock, title, first and random, separated by commas; one is chosen each time.",
            applies_when=When("randomize_capitalization", (True,)),
        ),
    ] = "capslock, title, first, random"
    capitalization_probability: Annotated[
        Fraction,
        advanced_setting(
            "Capitalization probability",
            "The probability that a tag is changed.",
            applies_when=When("randomize_capitalization", (True,)),
        ),
    ] = 0.0
    lowercase_first: Annotated[
        bool,
        advanced_setting(
            "Force lowercase first",
            "Converts every tag to lowercase before its capitalization is changed.",
            applies_when=When("randomize_capitalization", (True,)),
        ),
    ] = False
    shuffle_tags: Annotated[
        bool, advanced_setting("Shuffle tags", "Shuffles the order of a caption's tags. Kept tags stay in their place.")
    ] = False
    trigger_word: Annotated[
        str,
        advanced_setting(
            "Trigger word",
            "A word or phrase that every caption should contain. Captions without it get it as their first tag; a tag "
            "that contains it is neither dropped nor capitalized.",
            empty_means="none",
        ),
    ] = ""
    prefix: Annotated[
        str,
        advanced_setting("Prefix", "Written before every caption, also where an image has none.", empty_means="none"),
    ] = ""
    suffix: Annotated[
        str,
        advanced_setting(
            "Suffix",
            "Written after every caption. Without a space if it begins with a punctuation mark.",
            empty_means="none",
        ),
    ] = ""
