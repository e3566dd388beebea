"""The settings of Stable Diffusion 3 and 3.5."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le

from modules.families.settings import FamilySettings
from modules.settings.field import Setting

USUAL_TOKENS, MAX_TOKENS = 256, 512
"""The tokens that T5 reads of a prompt, with the end token and the padding, and the most that
`StableDiffusion3Pipeline` allows.
"""


class Sd3Settings(FamilySettings):
    """2 to 8 billion weights (medium and large), for images of 1024 pixels."""

    name: Literal["sd3"] = "sd3"
    text_tokens: Annotated[
        int,
        Ge(1),
        Le(MAX_TOKENS),
        Setting(
            "T5 tokens",
            "The number of tokens that T5 reads of each prompt; shorter prompts are padded to it, and the model "
            "attends to the padding. OneTrainer has 77. Fewer need less memory and smaller caches. Both CLIPs always "
            "read 75.",
            group="Base model",
            unit="tokens",
            level="advanced",
        ),
    ] = USUAL_TOKENS
    clip_skip: Annotated[
        int,
        Ge(0),
        Le(10),
        Setting(
            "Clip skip",
            "How many of the last layers of CLIP-L are skipped, besides the one that the model always skips.",
            group="Base model",
            unit="layers",
            level="advanced",
        ),
    ] = 0
    clip_skip_2: Annotated[
        int | None,
        Ge(0),
        Le(30),
        Setting(
            "Clip skip 2",
            "Clip skip of the second text encoder, CLIP-G.",
            group="Base model",
            unit="layers",
            level="advanced",
            empty_means="same as the first",
        ),
    ] = None

    def skipped_layers(self, encoder: str) -> int:
        """Return the clip skip of one of the CLIPs; T5 has none."""
        if encoder == "text_encoder_2" and self.clip_skip_2 is not None:
            return self.clip_skip_2
        return self.clip_skip if encoder in ("text_encoder", "text_encoder_2") else 0

    def unreached_layers(self, part: str, config: Mapping[str, Any], variant: str) -> tuple[str, ...]:
        """Return the queries of the text in the last block: nothing reads what they attend to.

        The pooled states of the CLIPs reach all of their layers.
        """
        return unread_queries(config) if part == "transformer" else ()

    def tokens_read(self, most: int, denoiser: Mapping[str, Any]) -> int:
        """Return the tokens that T5 reads of a prompt, without the end token."""
        return self.text_tokens - 1


def unread_queries(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the layers of a transformer of this config whose output nothing reads."""
    attention = f"transformer_blocks.{int(config['num_layers']) - 1}.attn"
    return f"{attention}.add_q_proj", f"{attention}.norm_added_q"
