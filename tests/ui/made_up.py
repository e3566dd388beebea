"""A config with a made-up section: the window shows it without any change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from annotated_types import Ge, Le

from modules.config.schema import Config
from modules.settings.every import Every
from modules.settings.field import Section, Setting, When, one_of
from tests.builders.variants import variants


class Slow(Section):
    """One variant."""

    name: Literal["slow"] = "slow"
    patience: Annotated[int, Ge(1), Le(9), Setting("Patience", "How much of it.", unit="cups")] = 3


class Fast(Section):
    """Another variant."""

    name: Literal["fast"] = "fast"
    hurry: Annotated[float, Ge(0), Le(1), Setting("Hurry", "How much of it.", level="advanced")] = 0.5
    is_rash: Annotated[bool, Setting("Rash", "Without looking.")] = False


def _flavours() -> Mapping[str, str]:
    return {"sweet": "Sweet", "sour": "Sour"}


class Tea(Section):
    """A field of every kind."""

    strength: Annotated[int, Ge(0), Le(10), Setting("Strength", "How dark.", unit="leaves", group="Pot")] = 4
    warmth: Annotated[float | None, Ge(0), Setting("Warmth", "How hot.", group="Pot", empty_means="as it comes")] = None
    has_milk: Annotated[bool, Setting("Milk", "Whether.", group="Pot")] = False
    milk_ml: Annotated[
        int,
        Ge(0),
        Setting("How much milk", "In it.", group="Pot", applies_when=When("has_milk", (True,))),
    ] = 20
    label: Annotated[str, Setting("Label", "On the pot.", group="Cup")] = ""
    cup: Annotated[Literal["mug", "glass"], Setting("Cup", "Of which kind.", group="Cup")] = "mug"
    flavour: Annotated[str, *one_of(_flavours), Setting("Flavour", "Which.", group="Cup")] = "sweet"
    rounds: Annotated[tuple[int, ...], Setting("Rounds", "How many.", group="Cup")] = (1, 2)
    refill: Annotated[Every, Setting("Refill", "How often.", group="Cup")] = Every(n=2, unit="hour")
    secret: Annotated[str, Setting("Secret", "Not for all.", group="Cup", level="advanced", path_kind="file")] = ""
    brewing: Annotated[
        Slow | Fast,
        *variants("slow", Slow, Fast, labels={"slow": "Slowly", "fast": "At once"}),
        Setting("Brewing", "In which way.", group="Cup"),
    ] = Slow()


class TeaConfig(Config):
    """The config with an extra section."""

    tea: Tea = Tea()
