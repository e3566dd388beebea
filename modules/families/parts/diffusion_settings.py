"""The settings that Stable Diffusion's families share: noise schedule, skipped layers and weighted words of prompts."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from annotated_types import Interval

from modules.families.settings import FamilySettings
from modules.settings.field import advanced_setting

CLIP_SKIP_2 = advanced_setting(
    "Clip skip 2", "Clip skip of the second text encoder, CLIP-G.", unit="layers", empty_means="same as the first"
)


def skip_of(encoder: str, first: int, second: int | None) -> int:
    """Return the clip skip of one of two text encoders; the second uses the first one's if it has none of its own."""
    return second if encoder == "text_encoder_2" and second is not None else first


class LatentDiffusionSettings(FamilySettings):
    """The settings of a latent diffusion model (DDPM) whose prompts CLIP's text encoders read."""

    prediction_type: Annotated[
        Literal["auto", "epsilon", "v_prediction"],
        advanced_setting(
            "Prediction type",
            "Automatic reads it from the model. Set it only if the model's files lack it or have it wrong, "
            "or to convert a model to v-prediction by training.",
            choice_labels={"auto": "Automatic", "epsilon": "epsilon", "v_prediction": "v-prediction"},
        ),
    ] = "auto"
    zero_terminal_snr: Annotated[
        Literal["auto", "on", "off"],
        advanced_setting(
            "Zero terminal SNR",
            "Makes the last timestep pure noise, so that the model can generate very dark and very bright images "
            "(Lin et al. 2023). Only with v-prediction. Automatic reads it from the model.",
            choice_labels={"auto": "Automatic", "on": "On", "off": "Off"},
        ),
    ] = "auto"
    clip_skip: Annotated[
        int,
        *Interval(ge=0, le=11),
        advanced_setting(
            "Clip skip",
            "How many of the text encoder's last layers are skipped, counted from 0 as in OneTrainer: 0 for most "
            "models, 1 for many anime models. kohya and A1111 count from 1: their clip skip 1 is 0 here, their 2 is 1.",
            unit="layers",
        ),
    ] = 0
    prompt_weighting: Annotated[
        bool,
        advanced_setting(
            "Prompt weighting",
            "Reads (word:1.2), (word) and [word] in captions and sample prompts as weights, as A1111 does. Off: "
            "brackets are ordinary characters.",
        ),
    ] = False

    def skipped_layers(self, encoder: str) -> int:
        """Return the clip skip."""
        return self.clip_skip

    def unreached_layers(self, part: str, config: Mapping[str, Any], variant: str) -> tuple[str, ...]:
        """Return the layers of a text encoder that clip skip leaves out (`TextTower.reaches`)."""
        return last_layers(config, self.skipped_layers(part)) if part == "text_encoder" else ()

    @property
    def reads_weights(self) -> bool:
        """Whether brackets in prompts are weights."""
        return self.prompt_weighting


def last_layers(config: Mapping[str, Any], number: int) -> tuple[str, ...]:
    """Return the last layers of a CLIP text encoder, by the beginnings of their names."""
    num_layers = int(config["num_hidden_layers"])
    return tuple(f"encoder.layers.{i}." for i in range(num_layers - number, num_layers))
