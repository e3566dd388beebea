"""The optimizers, each with the fields that are its own."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, Lt

from modules.config.field import Section, Setting

Beta = Annotated[float, Ge(0), Lt(1)]


class AdamW(Section):
    """AdamW (Loshchilov and Hutter 2019): the usual choice."""

    name: Literal["adamw"] = "adamw"
    beta1: Annotated[
        float,
        Ge(0),
        Lt(1),
        Setting("Beta 1", "How long the running mean of gradients remembers.", level="advanced"),
    ] = 0.9
    beta2: Annotated[
        float,
        Ge(0),
        Lt(1),
        Setting("Beta 2", "How long the running mean of squared gradients remembers.", level="advanced"),
    ] = 0.999
    eps: Annotated[
        float,
        Gt(0),
        Le(1),
        Setting("Epsilon", "Keeps the division finite; rarely touched.", level="advanced"),
    ] = 1e-8
    weight_decay: Annotated[
        float, Ge(0), Le(10), Setting("Weight decay", "Pulls weights towards zero at each step.")
    ] = 0.01


class Adafactor(Section):
    """Adafactor (Shazeer and Stern 2018) with an external learning rate: little optimizer memory."""

    name: Literal["adafactor"] = "adafactor"
    beta2_decay: Annotated[
        float,
        Ge(-1),
        Le(0),
        Setting("Beta 2 decay", "How the running mean of squared gradients slows down.", level="advanced"),
    ] = -0.8
    clip_threshold: Annotated[
        float,
        Ge(1),
        Le(100),
        Setting("Update clipping", "Larger updates are scaled down to this.", level="advanced"),
    ] = 1.0
    weight_decay: Annotated[
        float, Ge(0), Le(10), Setting("Weight decay", "Pulls weights towards zero at each step.")
    ] = 0.0


OptimizerSettings = AdamW | Adafactor
OPTIMIZER_LABELS = {"adamw": "AdamW", "adafactor": "Adafactor"}
