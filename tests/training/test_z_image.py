"""Z-Image alone; what all flow families share is in tests/training/flow."""

from __future__ import annotations

from pathlib import Path

import pytest

from modules.config.schema import Config
from modules.families.z_image.model import ZImage
from modules.families.z_image.spec import Z_IMAGE
from tests.builders.configs import config_fixture, laid_over
from tests.builders.images import draw_folder
from tests.builders.pipelines import load_tiny
from tests.builders.runs import errors_of
from trainer.preflight import check
from ui.forms.records import groups_of, inline_records

config = config_fixture("tiny_z_image")


def test_float16_is_refused(config: Config) -> None:
    for sections in ({"training": {"precision": "float16"}}, {"parts": {"transformer": {"dtype": "float16"}}}):
        [message] = errors_of(config, **sections).values()
        assert message.startswith("The transformer of Z-Image overflows in float16")


@pytest.mark.parametrize(
    ("name", "is_distilled"), [("Z-Image", False), ("Z-Image-Turbo", True), ("Z-Image-De-Turbo", False)]
)
def test_turbo_alone_is_distilled(config: Config, name: str, is_distilled: bool) -> None:
    problems = check(laid_over(config, {"model": {"base_model": f"someone/{name}"}})).problems
    assert any("seems to be a distilled model" in p.message for p in problems) is is_distilled


def test_long_captions_are_announced_while_the_tokenizer_is_not_there(config: Config, tmp_path: Path) -> None:
    draw_folder(tmp_path / "long", sizes=[(64, 64)] * 2, captions=["a disc", "a word " * 300])
    problems = check(
        laid_over(
            config, {"model": {"base_model": "Tongyi-MAI/Z-Image"}, "concepts": [{"path": str(tmp_path / "long")}]}
        )
    ).problems
    [long] = [p for p in problems if "may be longer than the 504 tokens" in p.message]
    assert (long.severity, long.message[:16]) == ("info", "1 of 2 captions ")


def test_it_has_no_settings_of_its_own(config: Config) -> None:
    [choice] = groups_of(config, ("model.family",))[0].records
    assert [record.path for record in inline_records(config, choice)] == []


def test_prompts_are_in_the_template_and_keep_their_lengths(tiny_z_image: Path) -> None:
    family: ZImage = load_tiny(tiny_z_image, Z_IMAGE.name)
    text = family.encode_prompts(["", "a disc"])
    empty = len("user\n\nassistant\n") + 3
    assert text.lengths == (empty, empty + len("a disc"))
    assert family.join([text.select([1]), text.select([0])], text).lengths == text.lengths[::-1]
