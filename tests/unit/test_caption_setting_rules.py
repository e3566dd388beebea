"""Settings of captions that change nothing, or less than they seem to, are reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from modules.config.rules.concepts import caption_changes
from modules.config.schema import Config
from modules.system.problem import Problem
from tests.builders.configs import laid_over, small_config

CACHED = {"parts": {"text_encoder": {"train": False}}, "training": {"epochs": 3}}


def problems(tmp_path: Path, concept: dict[str, Any], changes: dict[str, Any]) -> list[Problem]:
    small: Config = small_config(tmp_path, model=tmp_path, images=tmp_path)
    given = laid_over(laid_over(small, CACHED), changes)
    return list(caption_changes(laid_over(given, {"concepts": [{"path": str(tmp_path), "name": "cats", **concept}]})))


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ({"tag_dropout": True}, "tag_dropout_probability"),
        ({"randomize_capitalization": True}, "randomize_capitalization"),  # CLIP reads lower case
        ({"tag_dropout": True, "tag_dropout_probability": 0.1, "special_tags_mode": "blacklist"}, "special_tags"),
        ({"tag_dropout": True, "tag_dropout_probability": 0.1, "special_tags_mode": "whitelist"}, ""),
        ({"tag_dropout": True, "tag_dropout_probability": 0.1}, ""),
    ],
)
def test_an_operation_without_effect_is_reported(tmp_path: Path, text: dict[str, Any], field: str) -> None:
    found = problems(tmp_path, {"text": text, "text_variations": 2}, {})
    assert [(p.path, p.severity) for p in found] == ([(f"concepts.0.text.{field}", "warning")] if field else [])
    assert all("is on for the concept cats, but" in p.message and p.advice for p in found)


@pytest.mark.parametrize(
    ("concept", "changes", "is_reported"),
    [
        ({}, {}, True),
        ({"text_variations": 2}, {}, False),
        ({"text": {"choice": "random"}}, {}, False),
        ({"text": {"wildcards": True}}, {}, True),
        ({"text": {"tag_dropout": True, "tag_dropout_probability": 0.1}}, {}, True),
        ({"enabled": False}, {}, False),
        ({"kind": "validation"}, {}, False),
        ({}, {"parts": {"text_encoder": {"train": True}}}, False),
        ({}, {"data": {"text_cache": False}}, False),
        ({}, {"training": {"epochs": 1}}, False),
    ],
)
def test_captions_that_are_drawn_once_are_reported(
    tmp_path: Path, concept: dict[str, Any], changes: dict[str, Any], is_reported: bool
) -> None:
    """With cached text embeddings, shuffled tags used to have one order in all epochs, without a word."""
    found = problems(tmp_path, {"text": {"shuffle_tags": True}, **concept}, changes)
    assert [p.path for p in found] == (["concepts.0.text_variations"] if is_reported else [])
