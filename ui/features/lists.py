"""The Sampling and the Embeddings page: their settings, and the lists of prompts and of embeddings."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Sequence
from pathlib import Path

from modules.config.schema import Config
from modules.config.sections.embeddings import EmbeddingSettings
from modules.config.sections.evaluation import SamplePrompt
from modules.config.usage import supports_embeddings, uses_denoiser
from modules.settings.shared_types import side_of
from ui.forms.context import Context
from ui.forms.form_with_list import FormWithList, ListSpec, Row
from ui.forms.setting_pages import PageSpec
from ui.widgets.table import Column


def sampling_page(master: tk.Misc, context: Context, spec: PageSpec) -> FormWithList:
    """Return the page: the form of its section and the table of prompts."""
    return FormWithList(master, context, spec, _PROMPTS)


def _row_of(sample: SamplePrompt, _config: Config) -> Row:
    text = " ".join(sample.prompt.split()) or "(no prompt)"
    size = f"{sample.width_px} × {sample.height_px}"
    values = (size, str(sample.seed), str(sample.steps), f"{sample.guidance:g}")
    return f" {text}", values, "" if sample.enabled else "faint"


def _new(prompts: Sequence[SamplePrompt], config: Config) -> SamplePrompt:
    """Return a prompt like the last one, or one at the training resolution."""
    if prompts:
        return prompts[-1].model_copy(update={"prompt": ""})
    side_px = side_of(config.data.resolution_px[0]) // 8 * 8
    return SamplePrompt(width_px=side_px, height_px=side_px)


_PROMPTS = ListSpec(
    path="sampling.prompts",
    title="Sample prompts",
    columns=(
        Column("#0", "Prompt", 340, is_stretched=True),
        Column("size", "Size", 90),
        Column("seed", "Seed", 80),
        Column("steps", "Steps", 60),
        Column("guidance", "Guidance", 76),
    ),
    add_label="Add sample",
    add_tip="Add a sample prompt",
    item_name="Sample",
    item_type=SamplePrompt,
    row_of=_row_of,
    new=_new,
    empty_text="No prompts: a run generates no samples.\nAdd some to watch it learn.",
    depends_on=("training.trains",),
    applies=uses_denoiser,  # a VAE's samples are images of the data
)


def embeddings_page(master: tk.Misc, context: Context, spec: PageSpec) -> FormWithList:
    """Return the page: the form, and the table of embeddings."""
    return FormWithList(master, context, spec, _EMBEDDINGS)


def _embedding_row(word: EmbeddingSettings, config: Config) -> Row:
    start = Path(word.file).name or word.initial_text or "random"
    tokens = "" if word.token_count is None else str(word.token_count)
    return f" {word.placeholder}", ("yes" if word.train else "no", tokens, start), "" if word.train else "faint"


def _new_embedding(embeddings: Sequence[EmbeddingSettings], config: Config) -> EmbeddingSettings:
    """Return an embedding with a placeholder that no other one has."""
    names = {w.placeholder.lower() for w in embeddings}
    free = (f"<embedding-{n}>" for n in range(2, len(names) + 3))
    first = EmbeddingSettings().placeholder
    return EmbeddingSettings(placeholder=first if first not in names else next(n for n in free if n not in names))


_EMBEDDINGS = ListSpec(
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
    item_type=EmbeddingSettings,
    row_of=_embedding_row,
    new=_new_embedding,
    empty_text="No embeddings. An embedding is a new word for prompts:\n"
    "alone as the training target (top bar), or together with a LoRA or a fine-tune.",
    depends_on=("training.trains", "model.family", "embeddings.words"),
    applies=lambda config: uses_denoiser(config) and (supports_embeddings(config) or bool(config.embeddings.words)),
)
