"""Of all settings exactly those that change an encoded image or text change the keys of cache entries: the others,
all changed together, change none. How many entries each rebuilds is in test_cache_reuse.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import find
from hypothesis.errors import NoSuchExample

from modules.config.schema import Config
from modules.config.sections.model import Part
from modules.data.concept import Concept
from modules.settings.edit import get_path, set_path
from modules.settings.field import FieldRecord, records_of
from tests.builders.configs import laid_over, small_config
from tests.builders.images import draw_folder, draw_mask
from tests.unit.strategies import few, valid_values
from trainer.run.prune import keys_of

NUM_IMAGES = 4

# The settings that affect an image or a text, alone or with others, and those that choose the caches themselves.
AFFECTING = frozenset({
    "data.resolution_px", "data.fixed_width_px", "data.fixed_height_px", "data.aspect_ratio_bucketing",
    "data.bucket_step_px", "data.bucket_aspect_ratios", "data.max_aspect_ratio", "data.never_upscale",
    "data.min_side_px", "data.latent_cache", "data.text_cache", "data.cache_dtype", "data.cache_location",
    "model.family.clip_skip", "model.family.clip_skip_2", "model.family.prompt_weighting", "training.precision",
    "model.base_model", "model.family", "concepts", "parts",
    "adapter.layers",  # a custom filter is needed beside "custom"
    "masks.enabled",
    "model.family.zero_terminal_snr",  # only with v-prediction
    "model.variant",  # that of the model
    "model.circular_padding",
    "model.channels_last",
    "training.trains",
})  # fmt: skip


@pytest.fixture(scope="module")
def base(tiny_sdxl: Path, tmp_path_factory: pytest.TempPathFactory) -> Config:
    folder = tmp_path_factory.mktemp("keys")
    images = draw_folder(folder / "images", sizes=[(100, 80)] * 2 + [(150, 64)] * 2)
    draw_mask(images / "000-masklabel.png", 100, 80)
    untrained = {key: {"train": False} for key in ("text_encoder", "text_encoder_2")}
    return small_config(folder, model=tiny_sdxl, images=images, parts=untrained)


@pytest.fixture(scope="module")
def keys(base: Config) -> set[str]:
    found, kinds = keys_of(base)
    assert len(found) == 2 * NUM_IMAGES + 1
    assert kinds >= {"latents", "text"}
    return found


def irrelevant() -> Iterator[FieldRecord]:
    """Every setting that is not listed above: numbers, switches and choices; of the encoders all but their dtype."""
    records = [r for r in records_of(Config) if r.path not in AFFECTING]
    for part in ("unet", "text_encoder", "text_encoder_2", "vae"):
        kept = ("dtype",) if part == "unet" else ("dtype", "train")
        records += [r for r in records_of(Part, f"parts.{part}") if r.path.rpartition(".")[2] not in kept]
    return (r for r in records if r.kind not in ("section", "list", "map", "text") and not r.setting.path_kind)


@pytest.mark.full
def test_all_other_settings_together_change_no_key(base: Config, keys: set[str]) -> None:
    config, changed = base, []
    for record in irrelevant():
        other = another_value(config, record)
        if other is not None:
            config = other
            changed.append(record.path)
    assert len(changed) > 80, changed
    assert keys_of(config)[0] == keys


def another_value(config: Config, record: FieldRecord) -> Config | None:
    """The config with a value of a field that is not the one it has; None if the field takes no other."""

    def is_another(value: Any) -> bool:
        result, problems = set_path(config, record.path, value)
        return not problems and bool(get_path(result, record.path) != get_path(config, record.path))

    try:
        return set_path(config, record.path, find(valid_values(record), is_another, settings=few))[0]
    except NoSuchExample:
        return None


CHANGES: dict[str, tuple[dict[str, Any], int, int]] = {
    # setting: the change, the new keys of images, of texts
    "resolution": ({"data": {"resolution_px": [96]}}, 4, 0),
    "two resolutions": ({"data": {"resolution_px": [64, 96]}}, 4, 0),
    "one size": ({"data": {"fixed_width_px": 64, "fixed_height_px": 96}}, 4, 0),
    "no buckets": ({"data": {"aspect_ratio_bucketing": False}}, 2, 0),
    "bucket step": ({"data": {"bucket_step_px": 64}}, 2, 0),
    "max aspect ratio": ({"data": {"max_aspect_ratio": 1.3}}, 2, 0),
    "never upscale": ({"data": {"never_upscale": True}}, 0, 0),
    "channels last": ({"model": {"channels_last": "on"}}, 4, 0),
    "clip skip": ({"model": {"family": {"clip_skip": 1}}}, 0, 5),
    "clip skip 2": ({"model": {"family": {"clip_skip_2": 1}}}, 0, 5),
    "prompt weighting": ({"model": {"family": {"prompt_weighting": True}}}, 0, 5),
    "TF32": ({"training": {"precision": "tfloat32"}}, 4, 5),
    "precision": ({"training": {"precision": "bfloat16"}}, 0, 5),
    "VAE dtype": ({"parts": {"vae": {"dtype": "bfloat16"}}}, 4, 0),
    "text encoder dtype": ({"parts": {"text_encoder": {"dtype": "bfloat16"}}}, 0, 5),
    "text encoder 2 dtype": ({"parts": {"text_encoder_2": {"dtype": "float16"}}}, 0, 5),
    "cache dtype": ({"data": {"cache_dtype": "float16"}}, 4, 5),
    "caption dropout": ({"data": {"caption_dropout": 0.5, "caption_dropout_2": 0.5}}, 0, 0),
    "seed without anything random": ({"general": {"seed": 7}}, 0, 0),
    "masks": ({"masks": {"enabled": True}}, 1, 0),  # the one mask itself
}
CONCEPT_CHANGES: dict[str, tuple[dict[str, Any], int, int]] = {
    "crop jitter": ({"image": {"crop_jitter": True}}, 4, 0),
    "three variations": (
        {"image": {"brightness": "random", "brightness_max": 0.2}, "image_variations": 3}, 12, 0
    ),
    "variations of nothing random": ({"image_variations": 3, "text_variations": 3}, 0, 0),
    "flip": ({"image": {"flip": "always"}}, 4, 0),
    "rotation": ({"image": {"rotate": "always", "rotate_max_degrees": 10.0}}, 4, 0),
    "rotation by nothing": ({"image": {"rotate": "always"}}, 0, 0),
    "brightness": ({"image": {"brightness": "always", "brightness_max": 0.2}}, 4, 0),
    "contrast": ({"image": {"contrast": "random", "contrast_max": 0.2}}, 4, 0),
    "saturation": ({"image": {"saturation": "random", "saturation_max": 0.2}}, 4, 0),
    "hue": ({"image": {"hue": "random", "hue_max": 0.2}}, 4, 0),
    "crop to the mask": ({"image": {"mask_rotate_crop": True}}, 1, 0),
    "own resolution": ({"image": {"resolution_px": [96]}}, 4, 0),
    "background of opaque images": ({"background": "black"}, 0, 0),
    "prefix": ({"text": {"prefix": "a photo of"}}, 0, 4),
    "how often and how": ({"repeats": 3.0, "loss_weight": 0.5, "name": "discs"}, 0, 0),
}  # fmt: skip


def new_keys(config: Config, before: set[str]) -> tuple[int, int]:
    """The number of keys of images and of texts that were not there before."""
    both = keys_of(config)[0]
    texts = keys_of(laid_over(config, {"data": {"latent_cache": False}}))[0]
    return len(both - texts - before), len(texts - before)


@pytest.mark.parametrize("name", CHANGES)
def test_a_setting_changes_the_keys_of_what_it_affects(base: Config, keys: set[str], name: str) -> None:
    change, images, texts = CHANGES[name]
    assert new_keys(laid_over(base, change), keys) == (images, texts)


@pytest.mark.parametrize("name", CONCEPT_CHANGES)
def test_a_setting_of_a_concept_changes_the_keys_of_what_it_affects(base: Config, keys: set[str], name: str) -> None:
    change, images, texts = CONCEPT_CHANGES[name]
    concept = laid(base.concepts[0], change)
    assert new_keys(laid_over(base, {"concepts": [concept]}), keys) == (images, texts)


def laid(concept: Concept, change: dict[str, Any]) -> dict[str, Any]:
    tree = concept.model_dump(mode="json")
    for key, value in change.items():
        tree[key] = {**tree[key], **value} if isinstance(value, dict) else value
    return tree
