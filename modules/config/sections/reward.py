"""Rewards: what rates the pictures that a reward method paints."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge, Le

from modules.config.field import Section, Setting


class Scorer(Section):
    """One judge of pictures and how much its word counts."""

    enabled: Annotated[bool, Setting("Enabled", "Whether it is asked.")] = True
    kind: Annotated[
        Literal["aesthetic", "hps"],
        Setting(
            "Judge",
            "Aesthetic rates how pleasing a picture is, whatever its caption. HPS rates how well people would like it "
            "as a picture of its caption.",
            choice_labels={"aesthetic": "Aesthetic (LAION)", "hps": "Human preference (HPS v2)"},
        ),
    ] = "aesthetic"
    weight: Annotated[
        float, Ge(0), Le(1000), Setting("Weight", "How much its rating counts against those of the others.")
    ] = 1.0
    file: Annotated[
        str,
        Setting("File", "Its weights.", path_kind="file", empty_means="the published ones"),
    ] = ""


class Reward(Section):
    """The judges whose ratings the reward methods follow. The other methods ask none."""

    scorers: Annotated[
        tuple[Scorer, ...],
        Setting("Judges", "Who rates the pictures that a reward method paints.", group="Reward"),
    ] = ()
