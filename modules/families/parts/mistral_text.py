"""The language model inside Mistral-Small 3, without the vision tower beside it: text needs none of its weights.

Files have the weights as transformers writes a `Mistral3ForConditionalGeneration`, under "language_model.model." or
"model.language_model."; the config of the language model is the `text_config` in that of the whole.
"""

from __future__ import annotations

from typing import Any

from transformers import MistralConfig
from transformers.models.mistral import modeling_mistral

_FIXED = ("use_safetensors", "trust_remote_code")
_KEYS = {r"^(model\.)?language_model\.(model\.)?": ""}


class MistralModel(modeling_mistral.MistralModel):  # type: ignore[misc]  # transformers has no types
    """transformers' module, which takes the config of a whole Mistral-Small 3, too, and reads its part of the files."""

    _keys_to_ignore_on_load_unexpected = (r"vision_tower", r"multi_modal_projector", r"lm_head")

    def __init__(self, config: Any) -> None:
        """Make the language model of its own config, or of that of the whole with its own inside."""
        inside = getattr(config, "text_config", None)
        super().__init__(config if inside is None else MistralConfig(**inside))

    @classmethod
    def from_pretrained(cls, *arguments: Any, **options: Any) -> Any:
        """Return the model of a folder, with the names of the whole model or of the language model alone."""
        others = {name: value for name, value in options.items() if name not in _FIXED}
        return super().from_pretrained(
            *arguments, **others, use_safetensors=True, trust_remote_code=False, key_mapping=_KEYS
        )
