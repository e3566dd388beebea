"""The document for OneTrainer's users names places that exist, and every config key."""

from __future__ import annotations

import re

from modules.config.schema import Config
from modules.families.registry import FAMILIES
from modules.settings.edit import set_path
from tests.ui.onetrainer_doc import DOCUMENT, place_of, places, with_keys
from ui.app.catalogue import PAGES

_PLACE = re.compile(r"[^|,.;:*()]+ › [^|,.;:*()]+")
_OTHERS = (
    "Save as › Export as one file…",
    "Window › Debug bundle",
    "Model › the part's card",
    "Model › the second text encoder",
    "Model › the third text encoder",
    "Model › the transformer",
)  # no settings


def test_the_table_of_keys_is_current() -> None:
    text = DOCUMENT.read_text("utf-8")
    assert text == with_keys(text), "run: python -m tests.ui.onetrainer_doc"


def test_every_place_it_names_exists() -> None:
    configs = [set_path(Config(), "model.family", family)[0] for family in FAMILIES]
    known = {*_OTHERS, *(place_of(m) for config in configs for m in places(config).values())}
    cards = {place.rpartition(" › ")[0] for place in known}
    named = [place.strip().removesuffix(" and the same of each part") for place in _PLACE.findall(_text())]
    assert len(named) > 150
    assert [place for place in named if place not in known | cards] == []


def test_every_page_with_settings_is_named() -> None:
    assert [page.title for page in PAGES if page.sections and page.title not in _text()] == []


def _text() -> str:
    return DOCUMENT.read_text("utf-8").replace("`Page › Card › Field`", "")
