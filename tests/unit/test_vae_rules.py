"""Training the VAE: what does not go together with it is refused by name, and OneTrainer's FINE_TUNE_VAE is it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from modules.config.codec import decode
from modules.config.rules import problems_of
from modules.config.schema import Config
from modules.config.usage import data_in_use, learns_from, method_of, trained_parts, trains_on_pixels
from modules.families.registry import FAMILIES
from modules.settings.edit import live_records, replace_value
from tests.builders.configs import laid_over, small_config
from trainer import phases

ANYWHERE = Path("nowhere")


def vae_config(**changes: Any) -> Config:
    training = {"trains": "vae", **changes.pop("training", {})}
    return laid_over(small_config(ANYWHERE, model=ANYWHERE, images=ANYWHERE, training=training), changes)


def errors_of(config: Config) -> list[str]:
    return [p.path for p in problems_of(config) if p.severity == "error"]


def test_a_plain_config_has_no_errors() -> None:
    assert errors_of(vae_config()) == []


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"training": {"method": {"name": "alignprop"}}}, "training.method"),
        ({"training": {"method": {"name": "dpo"}}}, "training.method"),
        ({"model": {"family": "sdxl"}, "training": {"precision": "float16"}}, "training.precision"),
        ({"training": {"vae": {"mse_strength": 0.0}}}, "training.vae.mse_strength"),
        ({"model": {"family": "sdxl"}, "parts": {"vae": {"dtype": "float16"}}}, "parts.vae.dtype"),
        ({"parts": {"vae": {"offload_fraction": 0.5}}}, "parts.vae.offload_fraction"),
        ({"parts": {"vae": {"train": False}}}, "parts.vae.train"),
        ({"parts": {"vae": {"learning_rate": 0.0}}}, "parts.vae.learning_rate"),
        ({"masks": {"enabled": True, "prior_preservation_weight": 0.5}}, "masks.prior_preservation_weight"),
        ({"concepts": [{"path": "x"}, {"path": "y", "kind": "prior_prediction"}]}, "concepts.1.kind"),
        ({"concepts": [{"path": "x"}, {"path": "y", "kind": "prompts"}]}, "concepts.1.kind"),
        ({"output": {"dtype": "float8"}}, "output.dtype"),
        ({"model": {"family": "sana"}}, "output.model_format"),  # used to fail when it was saved
    ],
)
def test_what_does_not_go_together_is_refused_by_name(changes: dict[str, Any], path: str) -> None:
    assert path in errors_of(vae_config(**changes))


def test_only_the_vae_is_trained_and_nothing_is_cached() -> None:
    config = vae_config(data={"latent_cache": True, "text_cache": True})
    assert trains_on_pixels(config)
    assert method_of(config).name == "reconstruction"
    assert learns_from(config) == "images"
    assert [p.name for p in trained_parts(config)] == ["vae"]
    assert not data_in_use(config).latent_cache
    facts = phases.phase_facts(config)
    for phase in (phases.TRAIN, phases.VALIDATE, phases.SAMPLE_DECODE):
        assert phases.needed_parts(phase, _family(), facts) == {"vae"}


def _family() -> Any:
    from modules.families.registry import FAMILIES

    return FAMILIES["sd"]


@pytest.mark.parametrize(("family", "is_read"), [("sana", False), ("pixart", True)])
def test_a_file_is_asked_for_where_the_family_reads_one(family: str, is_read: bool) -> None:
    paths = {r.path for r in live_records(replace_value(Config(), "model.family", FAMILIES[family].settings()))}
    assert ("parts.vae.file" in paths) is is_read
    assert "parts.transformer.file" in paths


def test_its_settings_are_shown_for_this_target_only() -> None:
    own = {"training.vae.decoder_only", "parts.vae.learning_rate", "parts.vae.checkpointing"}
    of_vae = {r.path for r in live_records(vae_config())}
    of_lora = {r.path for r in live_records(small_config(ANYWHERE, model=ANYWHERE, images=ANYWHERE))}
    assert own <= of_vae
    assert not own & of_lora
    others = {
        "parts.unet.learning_rate", "model.family.clip_skip", "model.family.prediction_type", "data.caption_dropout",
        "data.latent_cache", "data.cache_location", "concepts.0.caption_source", "concepts.0.text.shuffle_tags",
        "training.noise.offset_weight", "training.loss.weighting", "embeddings.words", "sampling.prompts",
        "validation.num_timesteps", "quantization.layers", "output.trigger_words",
    }  # fmt: skip
    assert others <= of_lora
    assert not others & of_vae
    assert {"sampling.every", "validation.every", "masks.enabled", "concepts.0.image.flip"} <= of_vae


def test_onetrainers_fine_tune_vae_is_the_decoder_alone() -> None:
    theirs = {"__version": 11, "training_method": "FINE_TUNE_VAE", "model_type": "STABLE_DIFFUSION_15"}
    config = decode({**theirs, "vae": {"train": False, "weight_dtype": "FLOAT_32"}}).config
    assert config.training.trains == "vae"
    assert config.training.vae.decoder_only
    assert [p.name for p in trained_parts(config)] == ["vae"]
    assert config.part("vae").checkpointing == "block"
