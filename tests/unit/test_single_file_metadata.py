"""The metadata of files, as other programs read it."""

from __future__ import annotations

import base64
import json
from datetime import datetime
from pathlib import Path

import pytest
import yaml

from modules.families.parts.single_file.models import shipped_configs
from modules.families.parts.single_file.prediction import ZERO_SNR_LINE, read_sidecar
from modules.families.parts.single_file.record import PredictionMark
from modules.families.registry import published_model
from modules.formats.metadata import (
    CheckpointFacts,
    ConceptFacts,
    DatasetFacts,
    LoraFacts,
    checkpoint_metadata,
    dataset_metadata,
    lora_metadata,
)

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
    architecture_of = published_model(model).architecture_of
    dtypes = ("float16", "float32")
    facts = CheckpointFacts("mine", architecture_of(variant), "", "v_prediction", 768, dtypes, NOW)
    metadata = checkpoint_metadata(facts, payload_sha256="ab")
    assert metadata["modelspec.architecture"] == architecture
    assert metadata["modelspec.date"] == "2026-01-02T03:04:05"
    assert metadata["modelspec.hash_sha256"] == "0xab"
    assert {metadata["modelspec.prediction_type"], metadata["modelspec.predict_key"]} == {"v"}
    assert (metadata["modelspec.unet_dtype"], metadata["modelspec.vae_dtype"]) == dtypes


def test_a_flow_model_states_no_prediction_type() -> None:
    facts = CheckpointFacts("mine", "flow", "", "flow", 768, ("float16", "float32"), NOW)
    metadata = checkpoint_metadata(facts, payload_sha256="ab")
    assert not metadata.keys() & {"modelspec.prediction_type", "modelspec.predict_key"}


def test_a_lora_of_a_v_prediction_sd2_is_marked_as_such() -> None:
    facts = LoraFacts(
        *("mine", "base", "sd_v2_v", "stable-diffusion-v2-768-v"),
        **{"rank": 4, "alpha": 2.0, "resolution_px": 768, "clip_skip": 0},
        **{"seed": 0, "created": NOW, "prediction": "v_prediction", "is_v2": True},
    )
    of_result = {"modelspec.trigger_phrase": "zog", "modelspec.thumbnail": "data:image/jpeg;base64,eHl6"}
    metadata = lora_metadata(facts, of_result, payload_sha256="ab")
    assert (metadata["ss_v2"], metadata["ss_base_model_version"]) == ("True", "sd_v2_v")
    assert metadata["modelspec.prediction_type"] == "v"
    assert metadata["modelspec.trigger_phrase"] == "zog"
    assert metadata["modelspec.thumbnail"] == "data:image/jpeg;base64,eHl6"
    [cover] = json.loads(metadata["ssmd_cover_images"])
    assert base64.b64decode(cover) == b"xyz"
    assert float(metadata["ss_training_finished_at"]) == NOW.timestamp()
    assert not metadata.keys() & {"ss_training_started_at", "ss_dataset_dirs", "ss_bucket_info", "ss_tag_frequency"}


def test_the_images_of_a_run_in_the_shapes_of_sd_scripts() -> None:
    facts = DatasetFacts(
        [ConceptFacts("ten", 10.0, 3), ConceptFacts("half", 0.5, 4)],
        {(768, 512): 12, (512, 512): 20},
        0.125,
        {"ten": {"a": 2}},
    )
    metadata = dataset_metadata(facts)
    assert json.loads(metadata["ss_bucket_info"]) == {
        "buckets": {
            "0": {"resolution": [512, 512], "count": 20},
            "1": {"resolution": [768, 512], "count": 12},
        },
        "mean_img_ar_error": 0.125,
    }
    assert metadata["ss_dataset_dirs"] == (
        '{"ten": {"n_repeats": 10, "img_count": 3}, "half": {"n_repeats": 0.5, "img_count": 4}}'
    )
    assert metadata["ss_num_train_images"] == "32"
    assert json.loads(metadata["ss_tag_frequency"]) == {"ten": {"a": 2}}


@pytest.mark.parametrize(
    ("model", "prediction", "needed"),
    [
        ("sd1", "epsilon", False),
        ("sd1", "v_prediction", True),
        ("sd2", "epsilon", True),
        ("sd2_v", "v_prediction", True),
        ("sdxl", "epsilon", False),
        ("sdxl", "v_prediction", True),
        ("sdxl_refiner", "v_prediction", True),
    ],
)
def test_files_without_a_marker_get_a_yaml(model: str, prediction: str, needed: bool) -> None:
    record = published_model(model).single_file
    assert record is not None
    assert bool(record.sidecar(shipped_configs(model), prediction)) == needed


def sidecar(model: str) -> str:
    record = published_model(model).single_file
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


@pytest.mark.parametrize(("model", "depth", "context"), [("sdxl", [1, 2, 10], 2048), ("sdxl_refiner", 4, [1280] * 4)])
def test_the_yaml_of_sdxl_names_all_that_sgm_builds_the_model_from(
    model: str, depth: object, context: object, tmp_path: Path
) -> None:
    """As Stability's published config of the model (generative-models, MIT), but for v-prediction."""
    text = sidecar(model)
    parameters = yaml.safe_load(text)["model"]["params"]
    assert parameters.keys() == {
        *("scale_factor", "disable_first_stage_autocast", "denoiser_config", "network_config"),
        *("conditioner_config", "first_stage_config"),
    }
    denoiser = parameters["denoiser_config"]["params"]
    assert denoiser["scaling_config"]["target"].endswith("denoiser_scaling.VScaling")
    assert denoiser["weighting_config"]["target"].endswith("denoiser_weighting.VWeighting")
    assert denoiser["discretization_config"]["params"] == {
        "linear_start": 0.00085,
        "linear_end": 0.012,
        "num_timesteps": 1000,
    }
    unet = parameters["network_config"]["params"]
    assert (unet["transformer_depth"], unet["context_dim"], unet["num_head_channels"]) == (depth, context, 64)
    assert unet["attention_resolutions"] == [4, 2]
    assert unet["adm_in_channels"] == (2816 if model == "sdxl" else 2560)
    embedders = parameters["conditioner_config"]["params"]["emb_models"]
    texts = ["FrozenCLIPEmbedder", "FrozenOpenCLIPEmbedder2"][model == "sdxl_refiner" :]
    assert [e["target"].rpartition(".")[2] for e in embedders] == [*texts, *["ConcatTimestepEmbedderND"] * 3]
    assert [e["is_trainable"] for e in embedders] == [False] * len(embedders)
    assert parameters["first_stage_config"]["params"]["ddconfig"]["ch_mult"] == [1, 2, 4, 4]
    (tmp_path / "m.yaml").write_text(text + ZERO_SNR_LINE)
    assert read_sidecar(tmp_path / "m.safetensors") == PredictionMark("v_prediction", True, "m.yaml")
    assert yaml.safe_load(text + ZERO_SNR_LINE).keys() == {"model", "zero_terminal_snr"}
