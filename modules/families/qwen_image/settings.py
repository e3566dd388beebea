"""The settings of Qwen-Image."""

from collections.abc import Mapping
from typing import Any, Literal

from modules.families.settings import FamilySettings

# Of the text's stream the last block needs the keys and values alone: its output is not used.
_UNUSED_IN_LAST = ("attn.add_q_proj.", "attn.norm_added_q.", "attn.to_add_out.", "txt_mlp.")


def unused_layers(num_blocks: int) -> tuple[str, ...]:
    """Return the layers of a transformer with that many blocks that change nothing, by the start of their names."""
    return tuple(f"transformer_blocks.{num_blocks - 1}.{name}" for name in _UNUSED_IN_LAST)


class QwenImageSettings(FamilySettings):
    """20 billion weights; draws text in images well."""

    name: Literal["qwen_image"] = "qwen_image"

    def unreached_layers(self, part: str, config: Mapping[str, Any], variant: str) -> tuple[str, ...]:
        """Return the layers of the transformer's last block whose results are not used."""
        return unused_layers(int(config["num_layers"])) if part == "transformer" else ()
