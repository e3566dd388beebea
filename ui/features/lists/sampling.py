"""The Sampling page: when samples are generated, and the list of prompts."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Sequence

from modules.config.method_facts import uses_denoiser
from modules.config.schema import Config
from modules.config.sections.evaluation import SamplePrompt
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


def _new(present: Sequence[SamplePrompt], config: Config) -> SamplePrompt:
    """Return a prompt like the last one, or one at the training resolution."""
    if present:
        return present[-1].model_copy(update={"prompt": ""})
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
    depends_on="training.trains",
    applies=uses_denoiser,  # a VAE's samples are images of the data
)
