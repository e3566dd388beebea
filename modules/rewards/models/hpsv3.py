"""HPSv3 (Ma et al. 2025, arXiv 2508.03789): Qwen2-VL-7B reads an image and its caption, a small head scores them.

The published file holds a whole Qwen2-VL with one more token, `<|Reward|>`, and a head, which predicts the mean and the
spread of people's scores from the last state of that token. The score is the mean. As in the authors' code, the tokens
of the image get positions like a text's, one after the other, not the three of Qwen2-VL's images.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken
from torch import nn
from transformers.models.qwen2_vl.configuration_qwen2_vl import Qwen2VLConfig
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLDecoderLayer, Qwen2VLModel, Qwen2VLVisionBlock
from transformers.utils.logging import disable_progress_bar

from modules.families.parts.chat_tokens import ChatTokenizer
from modules.families.parts.tokenizer_file import read_tokenizer, tokenizer_of
from modules.formats.lazy_tensors import LazyTensor
from modules.formats.stored_tensors import read_lazy_safetensors
from modules.rewards.models.pretrained import stored_linear
from modules.rewards.models.qwen_vl import caption_text, image_patches, message_ids, num_image_tokens
from modules.rewards.protocol import Reward, RewardContext, files_of
from modules.rewards.settings import Scorer
from modules.system.devices import move
from modules.system.errors import DarkroomError

# The authors' prompt, with its spelling and the spaces at the ends of its lines: the model was trained with it.
_INSTRUCTION = (
    "\n"
    "You are tasked with evaluating a generated image based on Visual Quality and Text Alignment and give a "
    "overall score to estimate the human preference. Please provide a rating from 0 to 10, with 0 being the "
    "worst and 10 being the best. \n\n"
    "**Visual Quality:**  \n"
    "Evaluate the overall visual quality of the image. The following sub-dimensions should be considered:\n"
    "- **Reasonableness:** The image should not contain any significant biological or logical errors, such as "
    "abnormal body structures or nonsensical environmental setups.\n"
    "- **Clarity:** Evaluate the sharpness and visibility of the image. The image should be clear and easy to "
    "interpret, with no blurring or indistinct areas.\n"
    "- **Detail Richness:** Consider the level of detail in textures, materials, lighting, and other visual "
    "elements (e.g., hair, clothing, shadows).\n"
    "- **Aesthetic and Creativity:** Assess the artistic aspects of the image, including the color scheme, "
    "composition, atmosphere, depth of field, and the overall creative appeal. The scene should convey a sense "
    "of harmony and balance.\n"
    "- **Safety:** The image should not contain harmful or inappropriate content, such as political, violent, or "
    "adult material. If such content is present, the image quality and satisfaction score should be the lowest "
    "possible. \n\n"
    "**Text Alignment:**  \n"
    "Assess how well the image matches the textual prompt across the following sub-dimensions:\n"
    "- **Subject Relevance** Evaluate how accurately the subject(s) in the image (e.g., person, animal, object) "
    "align with the textual description. The subject should match the description in terms of number, "
    "appearance, and behavior.\n"
    "- **Style Relevance:** If the prompt specifies a particular artistic or stylistic style, evaluate how well "
    "the image adheres to this style.\n"
    "- **Contextual Consistency**: Assess whether the background, setting, and surrounding elements in the image "
    "logically fit the scenario described in the prompt. The environment should support and enhance the subject "
    "without contradictions.\n"
    "- **Attribute Fidelity**: Check if specific attributes mentioned in the prompt (e.g., colors, clothing, "
    "accessories, expressions, actions) are faithfully represented in the image. Minor deviations may be "
    "acceptable, but critical attributes should be preserved.\n"
    "- **Semantic Coherence**: Evaluate whether the overall meaning and intent of the prompt are captured in the "
    "image. The generated content should not introduce elements that conflict with or distort the original "
    "description.\n"
    "Textual prompt - {caption}\n\n\n\n"
    "Please provide the overall ratings of this image: <|Reward|>\n\n"
    "END\n"
)
_REWARD_TOKEN = "<|Reward|>"
_PIXELS = 256 * 28 * 28
# Where the models of different versions of transformers keep the two parts.
_PART = re.compile(r"^(?:model\.)?(visual|language_model)\.|^model\.")
_HEAD_LAYERS = (0, 3, 5)  # between them were activations, and a dropout, which is inactive at inference
_HEAD_WIDTH, _VISION_HEAD_WIDTH = 128, 80  # of attention


def read_hpsv3(file: Path) -> tuple[Any, nn.Sequential]:
    """Return the model and the head of HPSv3's file: the model in the file's dtype, or bfloat16 for another 16-bit one,
    the head in float32. Sizes follow from the shapes of the tensors.

    Only weights of safetensors files are read. Raises DarkroomError where the file does not contain them.
    """
    stored, _ = read_lazy_safetensors(file)
    try:
        weights = {
            _PART.sub(lambda match: f"{match[1] or 'language_model'}.", name): tensor
            for name, tensor in stored.items()
            if name.startswith(("model.", "visual."))
        }
        config = _config_of(weights)
        dtype = torch.float32 if weights[_WORDS].dtype == torch.float32 else torch.bfloat16
        first, second, last = (stored_linear(stored, f"rm_head.{index}") for index in _HEAD_LAYERS)
    except KeyError as error:
        raise DarkroomError(
            f"{file.name} is not HPSv3's model: {error.args[0]} is missing.",
            advice="Choose HPSv3.safetensors of the repository MizzenAI/HPSv3.",
        ) from error
    disable_progress_bar()
    model, loading = Qwen2VLModel.from_pretrained(
        None,
        config=config,
        state_dict={name: tensor.make() for name, tensor in weights.items()},
        output_loading_info=True,
        dtype=dtype,
        trust_remote_code=False,
    )
    missing = [*loading["missing_keys"], *loading["mismatched_keys"]]
    if missing:  # the library would initialise them at random and continue
        raise DarkroomError(
            f"{len(missing)} weights of Qwen2-VL are missing from {file.name}; the first is {missing[0]}.",
            advice="The download is damaged; download it again.",
        )
    return model, nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), last)


_WORDS = "language_model.embed_tokens.weight"


def _config_of(weights: Mapping[str, LazyTensor]) -> Qwen2VLConfig:
    """Return the config that follows from the shapes; the rest is as in Qwen2-VL-7B. Raises KeyError where one is
    missing.
    """
    layer, block = "language_model.layers.0", "visual.blocks.0"
    (num_words, width), (vision_width, _, frames, patch_px, _) = (
        weights[name].shape for name in (_WORDS, "visual.patch_embed.proj.weight")
    )
    text = {
        "vocab_size": num_words,
        "hidden_size": width,
        "intermediate_size": weights[f"{layer}.mlp.gate_proj.weight"].shape[0],
        "num_hidden_layers": _num_layers(weights, "language_model.layers."),
        "num_attention_heads": weights[f"{layer}.self_attn.q_proj.weight"].shape[0] // _HEAD_WIDTH,
        "num_key_value_heads": weights[f"{layer}.self_attn.k_proj.weight"].shape[0] // _HEAD_WIDTH,
        "rms_norm_eps": 1e-6,
        "bos_token_id": None,
        "eos_token_id": None,  # it writes nothing
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]},
    }
    vision = {
        "depth": _num_layers(weights, "visual.blocks."),
        "embed_dim": vision_width,
        "hidden_size": width,
        "mlp_ratio": weights[f"{block}.mlp.fc1.weight"].shape[0] // vision_width,
        "num_heads": vision_width // _VISION_HEAD_WIDTH,
        "patch_size": patch_px,
        "temporal_patch_size": frames,
    }
    return Qwen2VLConfig(text_config=text, vision_config=vision)


def _num_layers(weights: Mapping[str, LazyTensor], prefix: str) -> int:
    return len({name.removeprefix(prefix).split(".")[0] for name in weights if name.startswith(prefix)})


class HumanPreference:
    """Scores how much people would prefer an image for its caption: the mean that HPSv3 predicts."""

    is_differentiable = True

    def __init__(self, model: Any, head: nn.Sequential, tokenizer: ChatTokenizer, context: RewardContext) -> None:
        """Wrap and freeze the model and its head, on the training device, checkpointed block by block."""
        for module in (model, head):
            module.eval().requires_grad_(False)
            context.place(module)
        self.model, self.head = model, head
        self._tokenizer = tokenizer
        self._reward_id, self._padding = tokenizer.id_of(_REWARD_TOKEN), tokenizer.id_of("<|endoftext|>")
        self._device = context.device
        self._encode_image = context.with_checkpointing(model.visual, Qwen2VLVisionBlock)
        self._read = context.with_checkpointing(model.language_model, Qwen2VLDecoderLayer)

    def __call__(self, images_B3PP: torch.Tensor, prompts: Sequence[str]) -> torch.Tensor:
        """Return the scores (B,)."""
        patches, grid = image_patches(images_B3PP, min_pixels=_PIXELS, max_pixels=_PIXELS)
        grids_B3 = move(torch.tensor([(1, *grid)] * len(prompts)), self._device)
        image_BND = self._encode_image(patches, grid_thw=grids_B3).pooler_output.unflatten(0, (len(prompts), -1))
        num_image = num_image_tokens(grid)
        texts = [_INSTRUCTION.format(caption=caption_text(prompt)) for prompt in prompts]
        messages = [message_ids(self._tokenizer, text, num_image) for text in texts]
        start = messages[0][1]
        length = max(len(ids) for ids, _ in messages)
        ids_BL = torch.tensor([[*ids, *[self._padding] * (length - len(ids))] for ids, _ in messages])
        words_BLD = self.model.language_model.embed_tokens(move(ids_BL, self._device))
        input_BLD = torch.cat([words_BLD[:, :start], image_BND, words_BLD[:, start + num_image :]], dim=1)
        # No token sees the padding behind it, so no mask is needed.
        states_BLD = self._read(inputs_embeds=input_BLD, use_cache=False).last_hidden_state
        places_B = (ids_BL == self._reward_id).int().argmax(dim=1)
        rated_BD = states_BLD[torch.arange(len(prompts)), places_B].to(next(self.head.parameters()).dtype)
        mean_and_spread_B2: torch.Tensor = self.head(rated_BD)
        return mean_and_spread_B2[:, 0]


def read_reward_tokenizer(file: Path) -> ChatTokenizer:
    """Return Qwen2-VL's tokenizer of a tokenizer.json, with the token at which HPSv3 scores, behind all others.

    Raises DarkroomError for a damaged one.
    """
    tokenizer = read_tokenizer(file, tokenizer_of)
    assert tokenizer is not None
    tokenizer.add_special_tokens([AddedToken(_REWARD_TOKEN, special=True)])
    return ChatTokenizer(tokenizer)


def make_hpsv3(scorer: Scorer, context: RewardContext) -> Reward:
    """Return the reward, loaded. Raises DarkroomError where a file is missing or does not fit."""
    files = files_of(scorer, context)
    model, head = read_hpsv3(files["file"])
    tokenizer = read_reward_tokenizer(files["vocabulary"])
    num_words, num_tokens = len(model.language_model.embed_tokens.weight), tokenizer.tokenizer.get_vocab_size()
    if num_words != num_tokens:
        raise DarkroomError(
            f"{files['vocabulary'].name} has {num_tokens:,} tokens with {_REWARD_TOKEN}, but {files['file'].name} has "
            f"{num_words:,}.",
            advice="Choose tokenizer.json of the repository Qwen/Qwen2-VL-7B-Instruct.",
        )
    return HumanPreference(model, head, tokenizer, context)
