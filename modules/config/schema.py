"""The config tree, version 1. Sections are frozen; `edit.set_path` makes an edited copy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from modules.config.field import Section, Setting
from modules.config.sections.adapter import Lora
from modules.config.sections.data import Concept, Data
from modules.config.sections.general import General
from modules.config.sections.model import Model, Output, Part
from modules.config.sections.training import Training
from modules.config.sections.watching import Backup, Sampling, Validation

VERSION = 1


class Config(Section):
    """Everything that decides a run. `unknown` keeps what a newer or another program wrote, by its path."""

    darkroom_version: Literal[1] = 1
    general: General = General()
    model: Model = Model()
    parts: Annotated[
        Mapping[str, Part],
        Setting("Parts of the model", "Whether each part learns, how fast and for how long."),
    ] = {}
    data: Data = Data()
    concepts: Annotated[tuple[Concept, ...], Setting("Concepts", "The folders of pictures to learn from.")] = ()
    training: Training = Training()
    adapter: Lora = Lora()
    validation: Validation = Validation()
    sampling: Sampling = Sampling()
    backup: Backup = Backup()
    output: Output = Output()
    unknown: Mapping[str, Any] = {}

    def part(self, name: str) -> Part:
        """Return the settings of one part of the model, the defaults where the file says nothing of it."""
        return self.parts.get(name) or Part()
