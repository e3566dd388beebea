"""The remedies of problems: for each, the window has a button, and the command line prints the command.

A `Problem` names its remedy. A new one is a record here, and the window's action for it in `ui/loop/interaction.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from modules.system.problem import Problem


class Remedy(NamedTuple):
    """A way to fix a problem: the label of its button, and a sentence for the command line."""

    name: str
    label: str
    command: str


REMEDIES: Mapping[str, Remedy] = {
    remedy.name: remedy
    for remedy in (
        Remedy(
            "memory",
            "Fit to my card…",
            "python -m trainer check CONFIG --fit auto --save FILE writes a config whose memory fits the card.",
        ),
        Remedy(
            "base_model",
            "Choose the base model…",
            "python -m trainer models lists the models on this computer; --set model.base_model=PATH uses one.",
        ),
        Remedy(
            "repository",
            "Use the replacement",
            "--set model.base_model=OWNER/MODEL uses the repository that replaces it.",
        ),
        Remedy(
            "family",
            "Train it as what it is…",
            "python -m trainer train CONFIG --family FAMILY trains its images with a preset of another family.",
        ),
        Remedy(
            "variant",
            "Use its variant",
            "--set model.variant=NAME sets the variant of the base model.",
        ),
        Remedy(
            "attention",
            "Use an attention that works",
            "--set training.attention=NAME uses one of those that the finding names.",
        ),
        Remedy(
            "device",
            "Set it to auto",
            "--set general.train_device=auto uses the GPU, or the CPU where there is none.",
        ),
        Remedy("length", "How long to train…", "--set training.epochs=NUMBER sets how long to train."),
        Remedy(
            "method",
            "Which method?",
            "--set training.method=NAME trains by another method; docs/preferences.md compares them.",
        ),
        Remedy(
            "preset",
            "Choose a preset…",
            "python -m trainer train CONFIG --family FAMILY trains its images with a preset of another family.",
        ),
        Remedy(
            "captions",
            "Write captions…",
            "python -m trainer caption FOLDER --download writes a caption for each image that has none.",
        ),
        Remedy("queue", "Add to the queue", "python -m trainer queue add CONFIG trains it after the other runs."),
        Remedy(
            "space",
            "Free space…",
            "python -m trainer cache CONFIG --prune removes the cache entries that a config does not use; "
            "--set backup.keep=1 keeps one rolling backup.",
        ),
        Remedy(
            "packages",
            "Install the packages…",
            "python -m trainer install PACKAGE installs a package that a choice needs.",
        ),
        Remedy(
            "tokens",
            "Enter a token…",
            "python -m trainer secrets set huggingface_token stores a token for Hugging Face.",
        ),
        Remedy(
            "destination",
            "Keep both",
            "The result gets a number, so both stay; --overwrite replaces the other one.",
        ),
    )
}


def remedies_of(problems: Iterable[Problem]) -> list[Remedy]:
    """Return the remedies that errors and warnings name, each once, in the order of the registry."""
    named = {problem.remedy for problem in problems if problem.severity != "info"}
    return [remedy for remedy in REMEDIES.values() if remedy.name in named]
