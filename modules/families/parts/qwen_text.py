"""The language models inside Qwen's vision-language models: prompts need no images, so the rest is never read."""

from __future__ import annotations

import re
from typing import Any, ClassVar

from transformers.models.qwen3_vl import modeling_qwen3_vl as qwen3_vl

_PREFIX = r"^(model\.)?language_model\."
_IN_FILES = rf"{_PREFIX}|^model\."  # before transformers 4.52 the language model alone was under "model."
_NOT_TEXT = (r"(^|\.)visual\.", r"^lm_head\.")


def text_key(key: str) -> str:
    """Return the name of a tensor of the language model in a whole model's file; empty for those of other parts."""
    return "" if any(re.search(pattern, key) for pattern in _NOT_TEXT) else re.sub(_IN_FILES, "", key)


class Qwen3VLTextModel(qwen3_vl.Qwen3VLTextModel):  # type: ignore[misc]  # transformers has no types
    """Qwen3-VL's language model: transformers' module, also from the folder of a whole Qwen3-VL.

    Equal to the `language_model` of transformers' `Qwen3VLModel` for text alone.
    """

    _keys_to_ignore_on_load_unexpected: ClassVar[list[str]] = list(_NOT_TEXT)

    @classmethod
    def from_pretrained(cls, *arguments: Any, **options: Any) -> Any:
        """Return the language model of a folder, with transformers' own arguments. Code in it is never run."""
        given = {**options, "trust_remote_code": False, "key_mapping": {_PREFIX: ""}}
        given.pop("use_safetensors", None)
        return super().from_pretrained(*arguments, use_safetensors=True, **given)
