"""The Embeddings page: the settings of all embeddings, and the list of them."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Sequence
from pathlib import Path

from modules.config.method_facts import uses_denoiser
from modules.config.schema import Config
from modules.config.sections.embeddings import EmbeddingWord
from ui.forms.context import Context
from ui.forms.form_with_list import FormWithList, ListSpec, Row
from ui.forms.setting_pages import PageSpec
from ui.widgets.table import Column


def embeddings_page(master: tk.Misc, context: Context, spec: PageSpec) -> FormWithList:
    """Return the page: the form, and the table of embeddings."""
    return FormWithList(master, context, spec, _WORDS)


def _row_of(word: EmbeddingWord, config: Config) -> Row:
    start = Path(word.file).name or word.initial_text or "random"
    tokens = "" if word.token_count is None else str(word.token_count)
    return f" {word.placeholder}", ("yes" if word.train else "no", tokens, start), "" if word.train else "faint"


def _new(present: Sequence[EmbeddingWord], config: Config) -> EmbeddingWord:
    """Return an embedding with a placeholder that no other one has."""
    names = {w.placeholder.lower() for w in present}
    free = (f"<embedding-{n}>" for n in range(2, len(names) + 3))
    first = EmbeddingWord().placeholder
    return EmbeddingWord(placeholder=first if first not in names else next(n for n in free if n not in names))


_WORDS = ListSpec(
    path="embeddings.words",
    title="Embeddings",
    columns=(
        Column("#0", "Placeholder", 220, is_stretched=True),
        Column("train", "Trained", 70, "center"),
        Column("tokens", "Tokens", 70),
        Column("start", "Starts from", 260, is_stretched=True),
    ),
    add_label="Add embedding",
    add_tip="Add an embedding to train, or to use during training",
    item_name="Embedding",
    item_type=EmbeddingWord,
    row_of=_row_of,
    new=_new,
    empty_text="No embeddings. An embedding is a new word for prompts:\n"
    "alone as the training target (top bar), or beside a LoRA or a fine-tune.",
    depends_on="training.trains",
    applies=uses_denoiser,
)
