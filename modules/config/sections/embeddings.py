"""Embeddings: new tokens whose vectors are trained."""

from typing import Annotated, ClassVar, Literal

from modules.settings.conditions import USES_DENOISER
from modules.settings.every import Every
from modules.settings.field import Section, Setting, When, advanced_setting
from modules.settings.shared_types import CountTo1000, UpTo100


class EmbeddingSettings(Section):
    """An embedding: a placeholder in prompts that stands for trained vectors."""

    placeholder: Annotated[
        str,
        Setting("Placeholder", "The token to write in captions and prompts. Choose one that is not a real word."),
    ] = "<embedding>"
    initial_text: Annotated[
        str,
        Setting(
            "Initial text",
            "What the embedding starts from. A rough description works well.",
            empty_means="random vectors",
        ),
    ] = "*"
    start: Annotated[
        Literal["tokens", "mean", "random"],
        advanced_setting(
            "Initial vectors",
            "How the vectors start. Token by token: as the initial text has them, cut or filled up with * to the token "
            "count. Mean: each is the mean of them. Random: of the same length as the vocabulary's. A file replaces "
            "this.",
            choice_labels={"tokens": "Token by token", "mean": "Mean", "random": "Random"},
        ),
    ] = "tokens"
    token_count: Annotated[
        CountTo1000 | None,
        Setting(
            "Token count",
            "How many vectors the embedding has. More hold more detail and leave less room in the prompt.",
            empty_means="as many as the initial text needs",
        ),
    ] = 1
    file: Annotated[
        str,
        Setting("File", "An embedding to continue from.", path_kind="file", empty_means="a new one"),
    ] = ""
    train: Annotated[bool, Setting("Train", "Whether the embedding is trained, or only used.")] = True
    learning_rate: Annotated[
        UpTo100 | None,
        advanced_setting(
            "Learning rate",
            "This embedding's own learning rate.",
            empty_means="the learning rate of all embeddings",
            applies_when=When("train", (True,)),
            changeable_on_resume=True,
        ),
    ] = None
    stop_after: Annotated[
        Every,
        Setting(
            "Stop training after",
            "The embedding stops training once this much of the run has passed.",
            is_span=True,
            applies_when=When("train", (True,)),
            changeable_on_resume=True,
        ),
    ] = Every()
    is_output: Annotated[
        bool,
        advanced_setting(
            "Output embedding",
            "Trains the vectors at the text encoder's output instead of its input. Only this program and OneTrainer "
            "read such a file.",
        ),
    ] = False
    uuid: Annotated[
        str,
        advanced_setting(
            "UUID",
            "Identifies its files in backups. It never changes, so that the placeholder can be renamed.",
            empty_means="the placeholder",
        ),
    ] = ""


class Embeddings(Section):
    """Embeddings, trained alone or together with a model or an adapter."""

    group: ClassVar[str] = "Embeddings"
    applies_when: ClassVar[When | None] = USES_DENOISER

    words: Annotated[
        tuple[EmbeddingSettings, ...], Setting("Embeddings", "The embeddings to train, or to use during training.")
    ] = ()
    learning_rate: Annotated[
        UpTo100 | None,
        advanced_setting(
            "Embedding learning rate",
            "The learning rate of all embeddings.",
            applies_when=When("words", is_set=True),
            empty_means="the general one",
            changeable_on_resume=True,
        ),
    ] = None
    preserve_norm: Annotated[
        bool,
        advanced_setting(
            "Preserve embedding norm",
            "Rescales each vector to the vocabulary's typical norm after each step, so that no embedding "
            "dominates the others.",
            applies_when=When("words", is_set=True),
        ),
    ] = False
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"],
        advanced_setting(
            "Embedding dtype",
            "The dtype of embeddings while training.",
            applies_when=When("words", is_set=True),
            choice_labels={"float32": "float32", "bfloat16": "bfloat16", "float16": "float16"},
        ),
    ] = "float32"
