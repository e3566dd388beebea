"""What of a config a finished file carries: never more than its user asked for."""

from __future__ import annotations

import json

import pytest

from modules.config.schema import Config
from trainer.export.adapter import embedded_config

PRIVATE = ("holiday images", "a private prompt", "my concepts", "my samples", "an odd setting")


@pytest.mark.parametrize(("embeds", "is_all"), [("settings", False), ("all", True)])
def test_folders_prompts_and_files_of_lists_only_where_all_is_wanted(embeds: str, is_all: bool) -> None:
    config = Config.model_validate(
        {
            "concepts": [{"path": "holiday images"}],
            "concepts_file": "my concepts.json",
            "sampling": {"prompts": [{"prompt": "a private prompt"}], "prompts_file": "my samples.json"},
            "training": {"epochs": 33},
            "output": {"embed_config": embeds},
            "unknown": {"x": "an odd setting"},
        }
    )
    text = embedded_config(config)
    assert [secret in text for secret in PRIVATE] == [is_all] * len(PRIVATE)
    assert json.loads(text)["training"]["epochs"] == 33


def test_nothing_where_nothing_is_wanted() -> None:
    assert embedded_config(Config.model_validate({"output": {"embed_config": "none"}})) == ""
