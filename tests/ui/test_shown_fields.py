"""The fields that the forms show for each family, method and training target."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import pytest

from modules.config.records import describe_needs, record_at, why_unused
from modules.config.schema import Config
from modules.families.registry import FAMILIES
from modules.families.spec import FamilySpec
from modules.objectives.registry import METHODS
from modules.settings.edit import choose_variant, set_path
from ui.app.catalogue import PAGES
from ui.forms.records import inline_records, is_shown
from ui.forms.setting_pages import TOP_BAR, groups_on

TARGETS = ("adapter", "full", "embedding", "vae")
REWARD = (
    "alignprop",
    "online_dpo",
    "ddpo",
    "grpo",
    "nft",
    "dgpo",
)  # by default these train on images that they sample alone
# A prefix of paths, and for which method and target it is shown, with everything at its default.
RULES: tuple[tuple[str, Callable[[str, str], bool]], ...] = (
    ("training.noise.", lambda method, target: method not in ("alignprop", "ddpo", "grpo") and target != "vae"),
    ("training.loss.", lambda method, target: method == "denoise" and target != "vae"),
    ("training.vae.", lambda method, target: target == "vae"),
    ("training.method.", lambda method, target: method != "denoise" and target != "vae"),
    ("training.layer_filter", lambda method, target: target == "full"),
    ("adapter.", lambda method, target: target == "adapter"),
    ("output.format", lambda method, target: target == "adapter"),
    ("output.model_format", lambda method, target: target in ("full", "vae")),
    ("reward.", lambda method, target: method in REWARD and target != "vae"),
    ("masks.", lambda method, target: method not in REWARD or target == "vae"),
    ("parts.{denoiser}.train", lambda method, target: target in ("adapter", "full")),
    ("parts.{denoiser}.learning_rate", lambda method, target: target in ("adapter", "full")),
    ("parts.{denoiser}.", lambda method, target: target != "vae"),
    ("parts.text_encoder.train", lambda method, target: target in ("adapter", "full")),
    ("parts.vae.train", lambda method, target: target == "vae"),
    ("quantization.", lambda method, target: target != "vae"),
    ("data.text_cache", lambda method, target: target != "vae"),
    ("data.caption_dropout", lambda method, target: target != "vae"),
    ("model.family.clip_skip", lambda method, target: target != "vae"),
    ("validation.num_timesteps", lambda method, target: target != "vae"),
)


def rules_of(spec: FamilySpec) -> Iterator[tuple[str, Callable[[str, str], bool]]]:
    """The rules with the name of the family's denoiser, without those about settings that the family does not have."""
    trainable = {part.name for part in spec.trainable_parts}
    for prefix, is_wanted in RULES:
        if prefix == "parts.text_encoder.train" and "text_encoder" not in trainable:
            continue
        if prefix.startswith("model.family.") and prefix.rpartition(".")[2] not in spec.settings.model_fields:
            continue
        yield prefix.format(denoiser=spec.denoiser.name), is_wanted


def config_of(family: str, method: str, target: str) -> Config:
    config, _ = set_path(Config(), "model.family", family)
    config, _ = choose_variant(config, "training.method", method)
    return set_path(config, "training.trains", target)[0]


def shown_in(config: Config) -> Iterator[str]:
    for page in PAGES:
        for group in groups_on(page, config):
            for record in group.records:
                inner = inline_records(config, record) if record.kind == "section" else ()
                yield from (r.path for r in (record, *inner) if is_shown(config, r, show_advanced=True))


@pytest.mark.parametrize("target", TARGETS)
def test_only_what_family_method_and_target_use_is_shown(target: str) -> None:
    for family, method in product(FAMILIES, METHODS):
        if method not in record_choices():
            continue
        paths = set(shown_in(config_of(family, method, target)))
        for prefix, is_wanted in rules_of(FAMILIES[family]):
            found = any(path.startswith(prefix) for path in paths)
            assert found is is_wanted(method, target), f"{prefix} with {family}, {method}, {target}"
        parts = {part.name: part for part in FAMILIES[family].parts}
        encoders = [parts[name] for name in FAMILIES[family].names_of("text_encoder")]
        drops_apart = len([part for part in encoders if not part.reads]) > 1
        assert ("data.caption_dropout_2" in paths) is (drops_apart and target != "vae"), family
        has_second = "text_encoder_2" in parts and target != "vae"
        assert ("parts.text_encoder_2.dtype" in paths) is has_second, family
        skips_second = "clip_skip_2" in FAMILIES[family].settings.model_fields and target != "vae"
        assert ("model.family.clip_skip_2" in paths) is skips_second
        assert ("model.variant" in paths) is bool(FAMILIES[family].variants or FAMILIES[family].inputs)
        assert paths.isdisjoint(TOP_BAR)


def record_choices() -> set[str]:
    record = record_at(Config(), "training.method")
    assert record is not None
    return set(record.choices)


def test_a_method_that_also_trains_on_noised_images_shows_its_noise() -> None:
    config = config_of("sd", "alignprop", "adapter")
    assert why_unused(config, "training.noise.offset_weight")
    config, _ = set_path(config, "training.method.probability", 0.5)
    assert not why_unused(config, "training.noise.offset_weight")
    assert "training.noise.offset_weight" in set(shown_in(config))


def test_what_a_hidden_field_needs_is_said() -> None:
    config = config_of("sd", "grpo", "adapter")
    record = record_at(config, "training.loss.mix.mse.strength")
    assert record is not None
    assert describe_needs(config, record).startswith("not used: ")
    schedule = record_at(config, "output.model_format")
    assert schedule is not None
    assert describe_needs(config, schedule) == "needs Training target: Fine-tune or VAE"
