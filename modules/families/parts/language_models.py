"""The language models that read the prompts of newer families; their classes are imported on loading."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from modules.families.larger_model import LargerModel
from modules.families.model_class import ModelClass
from modules.families.spec import PartSpec, TextSpec

_PASSES = "modules.families.parts.traced_passes"

QWEN3 = ModelClass(
    "transformers.models.qwen3.modeling_qwen3:Qwen3Model",
    ("transformers.models.qwen3.modeling_qwen3:Qwen3DecoderLayer",),
    f"{_PASSES}:text_passes",
    is_large=True,
)
GEMMA2 = ModelClass(
    "transformers.models.gemma2.modeling_gemma2:Gemma2Model",
    ("transformers.models.gemma2.modeling_gemma2:Gemma2DecoderLayer",),
    f"{_PASSES}:text_passes",
    fill_buffers="modules.families.parts.gemma:fill_buffers",
    overflows_in_float16=True,  # it was trained in bfloat16
    is_large=True,
)
LLAMA = ModelClass(
    "transformers.models.llama.modeling_llama:LlamaModel",
    ("transformers.models.llama.modeling_llama:LlamaDecoderLayer",),
    f"{_PASSES}:text_passes",
    inside=LargerModel(config_key="text_config", names={r"^model\.": ""}, others=r"(^|\.)lm_head\."),
    is_large=True,
)
_LANGUAGE = r"(model\.)?(language_model\.)?(model\.)?"
_VISION_LANGUAGE = LargerModel(
    config_key="text_config",
    # Before transformers 4.52 the language model alone was under "model."; Mistral's has it once more inside.
    names={r"^(model\.)?language_model\.(model\.)?|^model\.": ""},
    others=r"(^|\.)(visual|vision_tower|multi_modal_projector|lm_head)\.",
)


def language_model_inside(module: str, name: str, layer: str) -> ModelClass:
    """Return the class of the language model inside a vision-language model: prompts need no images, so the rest of it
    is never read.

    `module` is transformers' name of the model, `name` the language model's class, `layer` the class of its layers.
    """
    classes = f"transformers.models.{module}.modeling_{module}"
    passes = f"{_PASSES}:text_passes"
    return ModelClass(f"{classes}:{name}", (f"{classes}:{layer}",), passes, inside=_VISION_LANGUAGE, is_large=True)


MISTRAL = language_model_inside("mistral", "MistralModel", "MistralDecoderLayer")
QWEN25_VL = language_model_inside("qwen2_5_vl", "Qwen2_5_VLTextModel", "Qwen2_5_VLDecoderLayer")
QWEN25_VL_SEEING = replace(
    QWEN25_VL,
    reference="transformers.models.qwen2_5_vl.modeling_qwen2_5_vl:Qwen2_5_VLModel",
    transformer_blocks=(
        *QWEN25_VL.transformer_blocks,
        "transformers.models.qwen2_5_vl.modeling_qwen2_5_vl:Qwen2_5_VLVisionBlock",
    ),
    passes="modules.families.parts.seeing_passes:seeing_passes",
    inside=LargerModel(
        config_key="text_config",
        # Before transformers 4.52 the language model alone was under "model."; files have bare names, too.
        names={r"^model\.(?=visual\.)": "", rf"^(?!visual\.){_LANGUAGE}": "language_model."},
        others=r"(^|\.)lm_head\.",
        vision_config={
            "depth": 32,
            "hidden_size": 1280,
            "intermediate_size": 3420,
            "num_heads": 16,
            "out_hidden_size": 3584,
            "patch_size": 14,
            "fullatt_block_indexes": [7, 15, 23, 31],
            "window_size": 112,
        },
    ),
    never_quantized=frozenset({"visual"}),  # 0.7 billion weights, in matrices whose sides few formats divide
)
"""The same with its vision encoder, for models whose prompts are read together with reference images."""
QWEN3_VL = language_model_inside("qwen3_vl", "Qwen3VLTextModel", "Qwen3VLTextDecoderLayer")


def chat_prompts(most_tokens: int, width_key: str, *, states_read: int = 1) -> TextSpec:
    """Return how families read prompts as messages of a chat, with the text encoder of `chat_parts`.

    `most_tokens` are read of a prompt, without its template's; longer prompts are truncated. `width_key` is the
    key in the transformer's config that holds the width of the text, `states_read` as in `TextSpec`.
    """
    return TextSpec(
        most_tokens,
        "modules.families.parts.chat_tokens:load_chat_tokenizer",
        truncates=True,
        ships_vocabulary=False,
        widths={"text_encoder": ("hidden_size", width_key)},
        states_read=states_read,
    )


def chat_parts(
    transformer: ModelClass,
    encoder: ModelClass,
    vae: ModelClass,
    *,
    reader: str,
    tokenizer: str = "",
    seeing: Mapping[str, ModelClass] = MappingProxyType({}),
) -> tuple[PartSpec, ...]:
    """Return the parts of a model whose prompts a frozen language model reads; `reader` is the name of that, and
    `tokenizer` the folder of its tokenizer, if that is not the usual one. `seeing` are its classes in the variants
    whose prompts it reads together with images.
    """
    text = PartSpec(
        "text_encoder",
        f"Text encoder ({reader})",
        "text_encoder",
        encoder,
        trainable=False,
        tokenizer=tokenizer,
        in_variants=seeing,
    )
    return (
        PartSpec("transformer", "Transformer", "denoiser", transformer),
        text,
        PartSpec("vae", "VAE", "vae", vae, trainable=False),
    )
