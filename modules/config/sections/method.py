"""What is learned from: the training methods, each with the fields that are its own."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le

from modules.config.field import Section, Setting


class Denoise(Section):
    """The ordinary method: take noise out of pictures (Ho et al. 2020)."""

    name: Literal["denoise"] = "denoise"


class AlignProp(Section):
    """A reward's gradient through the last denoising steps (Prabhudesai et al. 2023)."""

    name: Literal["alignprop"] = "alignprop"
    probability: Annotated[
        float,
        Ge(0),
        Le(1),
        Setting("Share of steps", "The share of steps that follow the reward; the others denoise as usual."),
    ] = 0.1
    steps: Annotated[int, Ge(1), Le(1000), Setting("Denoising steps", "How many steps a picture is painted in.")] = 20
    truncate: Annotated[
        float,
        Ge(0),
        Le(1),
        Setting("Truncation", "The share of the chain, from its beginning, that no gradient passes through."),
    ] = 0.5
    guidance: Annotated[
        float, Ge(0), Le(100), Setting("Guidance", "How strictly the painted pictures follow their captions.")
    ] = 7.0
    weight: Annotated[
        float, Gt(0), Le(1000), Setting("Weight", "How much a step for the reward counts against the others.")
    ] = 0.01


MethodSettings = Denoise | AlignProp
METHOD_LABELS = {"denoise": "Denoising", "alignprop": "AlignProp (reward)"}
