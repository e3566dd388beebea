"""Captioners and maskers at toy size: tiny random BLIP, Florence-2 and CLIPSeg folders, and sessions without ONNX."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from transformers import (
    BlipConfig,
    BlipForConditionalGeneration,
    CLIPSegConfig,
    CLIPSegForImageSegmentation,
    Florence2Config,
    Florence2ForConditionalGeneration,
    PreTrainedTokenizerFast,
)

_WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[DEC]", "a", "red", "disc", "cat", "on", "mat", "face"]
_SMALL = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 1}


class FakeSession:
    """Answers as an ONNX session of a tagger or a mask network would, by a function of its input."""

    def __init__(self, answer: Any, shape: tuple[int | str, ...] = (1, 448, 448, 3)) -> None:
        self._answer = answer
        self._shape = shape
        self.inputs: list[np.ndarray[Any, Any]] = []

    def get_inputs(self) -> list[Any]:
        return [SimpleNamespace(name="input", shape=list(self._shape))]

    def run(self, outputs: None, feeds: Mapping[str, np.ndarray[Any, Any]]) -> list[Any]:
        self.inputs.append(feeds["input"])
        return [self._answer(feeds["input"])]


def write_blip_folder(folder: Path) -> Path:
    """Write a tiny random BLIP captioner in transformers' layout."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        config = BlipConfig(
            text_config={
                **_SMALL,
                "vocab_size": len(_WORDS),
                "encoder_hidden_size": 16,
                "max_position_embeddings": 96,
                "bos_token_id": 4,
                "sep_token_id": 3,
                "eos_token_id": 3,
                "pad_token_id": 0,
            },
            vision_config={**_SMALL, "image_size": 32, "patch_size": 16},
            projection_dim=8,
        )
        model = BlipForConditionalGeneration(config).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(std=0.5)
        model.save_pretrained(folder)
    _tokenizer().save_pretrained(folder)
    _write_processor(folder, "BlipProcessor", "BlipImageProcessor", 32)
    return folder


def write_clipseg_folder(folder: Path) -> Path:
    """Write a tiny random CLIPSeg in transformers' layout."""
    tower = {**_SMALL, "hidden_size": 16}
    with torch.random.fork_rng():
        torch.manual_seed(3)
        config = CLIPSegConfig(
            text_config={
                **tower,
                "vocab_size": len(_WORDS),
                "max_position_embeddings": 16,
                "bos_token_id": 2,
                "eos_token_id": 3,
                "pad_token_id": 0,
            },
            vision_config={**tower, "image_size": 32, "patch_size": 16},
            projection_dim=8,
            reduce_dim=8,
            decoder_num_attention_heads=1,
            decoder_intermediate_size=16,
            extract_layers=[0, 1],
        )
        CLIPSegForImageSegmentation(config).save_pretrained(folder)
    _tokenizer().save_pretrained(folder)
    _write_processor(folder, "CLIPSegProcessor", "ViTImageProcessor", 32)
    return folder


def write_florence_folder(folder: Path) -> Path:
    """Write a tiny random Florence-2 in transformers' layout: 64 px, and 16 + 1 image tokens."""
    image_token = len(_WORDS)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        config = Florence2Config(
            text_config={
                "model_type": "bart",
                "d_model": 16,
                "vocab_size": len(_WORDS) + 1,
                "encoder_layers": 1,
                "decoder_layers": 1,
                "encoder_attention_heads": 1,
                "decoder_attention_heads": 1,
                "encoder_ffn_dim": 32,
                "decoder_ffn_dim": 32,
                "max_position_embeddings": 600,
                "pad_token_id": 0,
                "bos_token_id": 2,
                "eos_token_id": 3,
                "decoder_start_token_id": 3,
                "forced_eos_token_id": 3,
            },
            vision_config={
                "depths": (1, 1),
                "patch_size": (7, 3),
                "patch_stride": (8, 2),
                "patch_padding": (3, 1),
                "patch_prenorm": (False, True),
                "embed_dim": (8, 16),
                "num_heads": (1, 1),
                "num_groups": (1, 1),
                "window_size": 4,
                "projection_dim": 16,
            },
            image_token_id=image_token,
        )
        model = Florence2ForConditionalGeneration(config)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(std=0.5)
        model.save_pretrained(folder)
    _tokenizer(extra_special_tokens={"image_token": "<image>"}).save_pretrained(folder)
    _write_processor(folder, "Florence2Processor", "CLIPImageProcessor", 64, image_seq_length=17, do_center_crop=False)
    return folder


def _tokenizer(**more: object) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(_WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[(word, _WORDS.index(word)) for word in ("[CLS]", "[SEP]")]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="[DEC]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        eos_token="[SEP]",
        pad_token="[PAD]",
        unk_token="[UNK]",
        model_input_names=["input_ids", "attention_mask"],
        **more,
    )


def _write_processor(folder: Path, processor: str, image_processor: str, side_px: int, **more: object) -> None:
    data = {
        "image_processor_type": image_processor,
        "processor_class": processor,
        "size": {"height": side_px, "width": side_px},
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        **more,
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(data))
