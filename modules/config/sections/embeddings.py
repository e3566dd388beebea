"""Embeddings: new words that the text encoders learn."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge, Le

from modules.settings.every import Every
from modules.settings.field import Section, Setting, When


class EmbeddingWord(Section):
    """A word of a prompt that stands for vectors of its own."""

    placeholder: Annotated[
        str,
        Setting("Placeholder", "How captions and prompts write the word. It should be no word of any language."),
    ] = "<embedding>"
    initial_text: Annotated[
        str,
        Setting("Begins as", "What the word means before it is trained. A rough description is a good beginning."),
    ] = "*"
    token_count: Annotated[
        int | None,
        Ge(1),
        Le(75),
        Setting(
            "Vectors",
            "How many vectors the word is made of. More hold more, and leave less room for the rest of a prompt.",
            empty_means="as many as its beginning has",
        ),
    ] = 1
    file: Annotated[
        str,
        Setting("File", "An embedding to learn on from.", path_kind="file", empty_means="a new one"),
    ] = ""
    train: Annotated[bool, Setting("Train", "Whether the word is learned, or only used.")] = True
    stop_after: Annotated[
        Every,
        Setting(
            "Stop training after",
            "The word stops learning once this much of the run has passed.",
            applies_when=When("train", (True,)),
            changeable_on_resume=True,
        ),
    ] = Every()
    is_output: Annotated[
        bool,
        Setting(
            "After the text encoder",
            "Puts the vectors where the text encoder's output goes, and not where its input does.",
            level="advanced",
        ),
    ] = False
    uuid: Annotated[
        str,
        Setting(
            "Mark",
            "What its files in backups are called. It never changes, so that a word can be renamed.",
            level="advanced",
            empty_means="made at the start",
        ),
    ] = ""


class Embeddings(Section):
    """New words, trained alone or beside a model or an adapter."""

    words: Annotated[
        tuple[EmbeddingWord, ...],
        Setting("New words", "The words to learn, or to use while learning.", group="Embeddings", not_yet="refused"),
    ] = ()
    learning_rate: Annotated[
        float | None,
        Ge(0),
        Le(100),
        Setting(
            "Learning rate of embeddings",
            "How far each step moves them.",
            group="Embeddings",
            level="advanced",
            empty_means="the general one",
        ),
    ] = None
    preserve_norm: Annotated[
        bool,
        Setting(
            "Keep their length",
            "Brings each vector to the usual length of the vocabulary's after each step, so that no word drowns the "
            "others out.",
            group="Embeddings",
            level="advanced",
        ),
    ] = False
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"],
        Setting(
            "Number format of embeddings",
            "What they are kept in while training.",
            group="Embeddings",
            level="advanced",
            choice_labels={"float32": "float32", "bfloat16": "bfloat16", "float16": "float16"},
        ),
    ] = "float32"
