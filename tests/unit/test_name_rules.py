"""Names in configs that become names of files."""

from __future__ import annotations

from pathlib import Path

import pytest

from modules.config.rules import problems_of
from modules.config.schema import Config


def paths(prefix: str) -> list[tuple[str, str]]:
    config = Config.model_validate({"backup": {"save_prefix": prefix}})
    return [(p.path, p.severity) for p in problems_of(config) if p.path == "backup.save_prefix"]


@pytest.mark.parametrize(
    "prefix",
    [
        "../../../.bashrc", "..", ".", "a/b", "a\\b", "/etc/cron", "C:evil", "a\x1b[2J", "a\n", "CON", "nul.txt", " ",
        "\u202ecat", "x" * 200, "a\x00",
    ],
)  # fmt: skip
def test_a_prefix_of_saves_is_not_a_path(prefix: str) -> None:
    assert paths(prefix) == [("backup.save_prefix", "error")]


@pytest.mark.parametrize("prefix", ["", "cat-", "my cat v1.5", "Katze_übung", "console"])
def test_a_name_is_a_prefix(prefix: str) -> None:
    assert paths(prefix) == []
    assert Path("save", f"{prefix}-step-00000001.safetensors").parent == Path("save")
