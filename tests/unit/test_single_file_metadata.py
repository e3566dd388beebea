"""The metadata of files, as other programs read it."""

from __future__ import annotations

from datetime import datetime

import pytest

from modules.families.parts.single_file.models import shipped_configs
from modules.families.parts.single_file.prediction import read_sidecar
from modules.families.registry import published
from modules.formats.metadata import CheckpointFacts, LoraFacts, checkpoint_metadata, lora_metadata

NOW = datetime(2026, 1, 2, 3, 4, 5)


@pytest.mark.parametrize(
    ("model", "variant", "architecture"),
    [
        ("sd1", "", "stable-diffusion-v1"),
        ("sd1", "inpainting", "stable-diffusion-v1-inpainting"),
        ("sd2", "", "stable-diffusion-v2-512"),
        ("sd2_v", "", "stable-diffusion-v2-768-v"),
        ("sdxl", "", "stable-diffusion-xl-v1-base"),
        ("sdxl_refiner", "", "stable-diffusion-xl-v1-refiner"),
    ],
)
def test_modelspecs_architectures(model: str, variant: str, architecture: str) -> None:
    facts = CheckpointFacts("mine", published(model).architecture_of(variant), "", "v_prediction", 768, "float16", NOW)
    metadata = checkpoint_metadata(facts, payload_sha256="ab")
    assert metadata["modelspec.architecture"] == architecture
    assert metadata["modelspec.date"] == "2026-01-02T03:04:05"
    assert metadata["modelspec.hash_sha256"] == "0xab"
    assert {metadata["modelspec.prediction_type"], metadata["modelspec.predict_key"]} == {"v"}


def test_a_lora_of_a_v_prediction_sd2_is_marked_as_such() -> None:
    facts = LoraFacts(
        *("mine", "base", "sd_v2_v", "stable-diffusion-v2-768-v"),
        **{"rank": 4, "alpha": 2.0, "resolution_px": 768, "clip_skip": 0, "num_images": 3, "epochs": 1, "steps": 9},
        **{
            "seed": 0,
            "created": NOW,
            "prediction": "v_prediction",
            "is_v2": True,
            "trigger_phrase": "zog",
            "thumbnail": "data:x",
        },
    )
    metadata = lora_metadata(facts, payload_sha256="ab")
    assert (metadata["ss_v2"], metadata["ss_base_model_version"]) == ("True", "sd_v2_v")
    assert metadata["modelspec.prediction_type"] == "v"
    assert (metadata["modelspec.trigger_phrase"], metadata["modelspec.thumbnail"]) == ("zog", "data:x")


@pytest.mark.parametrize(
    ("model", "prediction", "needed"),
    [
        ("sd1", "epsilon", False),
        ("sd1", "v_prediction", True),
        ("sd2", "epsilon", True),
        ("sd2_v", "v_prediction", True),
        ("sdxl", "v_prediction", False),
    ],
)
def test_files_without_a_marker_get_a_yaml(model: str, prediction: str, needed: bool) -> None:
    record = published(model).single_file
    assert record is not None
    assert bool(record.sidecar(shipped_configs(model), prediction)) == needed


def sidecar(model: str) -> str:
    record = published(model).single_file
    assert record is not None
    return record.sidecar(shipped_configs(model), "v_prediction")


def test_the_yaml_contains_the_config_from_which_ldm_builds_the_model(tmp_path_factory: pytest.TempPathFactory) -> None:
    text = sidecar("sd2_v")
    lines = {line.strip() for line in text.splitlines()}
    assert {
        'parameterization: "v"',
        "context_dim: 1024",
        "num_head_channels: 64",
        "channel_mult: [1, 2, 4, 4]",
    } <= lines
    assert {"attention_resolutions: [4, 2, 1]", "use_linear_in_transformer: true", "image_size: 96"} <= lines
    assert 'layer: "penultimate"' in lines
    path = tmp_path_factory.mktemp("yaml") / "m.safetensors"
    path.with_suffix(".yaml").write_text(text)
    metadata = read_sidecar(path)
    assert metadata is not None
    assert metadata.prediction == "v_prediction"
    assert "num_heads: 8" in sidecar("sd1")
