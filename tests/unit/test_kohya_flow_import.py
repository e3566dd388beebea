"""Import the settings of kohya's scripts for flow models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from modules.adapters.settings import adapter_layers
from modules.config.codec import LoadedConfig, decode, encode
from modules.config.imports.any_file import load_any
from modules.config.imports.kohya_settings import tree_of_kohya
from modules.config.rules.every_setting import unsupported_settings
from modules.config.sections.evaluation import SamplePrompt
from modules.families.registry import FAMILIES, files_of, published_models
from modules.families.spec import FamilySpec
from modules.system.problem import Problem
from tests.unit.strategies import few, garbage
from trainer.data.preview import ConceptPreview

FAMILIES_THERE = [spec for spec in FAMILIES.values() if spec.kohya]
SETTINGS: dict[str, Any] = {
    "pretrained_model_name_or_path": "model.safetensors",
    "network_module": "networks.lora",
    "network_dim": 8,
    "network_alpha": 4,
    "network_train_unet_only": True,
    "timestep_sampling": "shift",
    "discrete_flow_shift": 3.1582,
    "sigmoid_scale": 1.5,
    "model_prediction_type": "raw",
    "guidance_scale": 1.0,
    "fp8_base": True,
    "blocks_to_swap": 6,
    "cpu_offload_checkpointing": True,
    "gradient_checkpointing": True,
    "learning_rate": 1e-4,
    "mixed_precision": "bf16",
    "network_args": ["split_qkv=True"],
}


def imported(given: dict[str, Any]) -> LoadedConfig:
    notes: list[Problem] = []
    loaded = decode(tree_of_kohya(given, notes))
    return LoadedConfig(loaded.config, [*notes, *loaded.problems])


@pytest.fixture(params=FAMILIES_THERE, ids=lambda spec: spec.name)
def family(request: pytest.FixtureRequest) -> FamilySpec:
    return request.param


def test_settings_of_every_flow_family(family: FamilySpec) -> None:
    loaded = imported({**SETTINGS, "model_type": family.kohya[0]})
    config, noise = loaded.config, loaded.config.training.noise
    assert config.family.name == family.name
    assert config.model.base_model == "model.safetensors"
    assert (noise.distribution, noise.noising_weight, noise.shift) == ("logit_normal", 0.5, 3.1582)
    assert (config.adapter.rank, config.adapter.alpha) == (8, 4.0)
    assert config.adapter.layers == family.denoiser.model.layers_elsewhere
    denoiser = config.part(family.denoiser.name)
    assert (denoiser.train, denoiser.dtype, denoiser.checkpointing) == (True, "float8", "block")
    assert denoiser.offload_activations
    assert 0 < denoiser.offload_fraction < 1
    for encoder in family.names_of("text_encoder"):
        assert config.part(encoder).dtype == "float8"
    for part in family.trainable_parts:
        assert config.part(part.name).train == (part.role == "denoiser")
    if "guidance" in family.settings.model_fields:
        assert config.model.family.guidance == 1.0
    assert "kohya" not in config.unknown
    assert not [p for p in loaded.problems if p.severity != "info"]


@pytest.mark.parametrize("where", ["model_type", "network_module", "base_model_version"])
def test_the_family_is_found_wherever_it_is_named(family: FamilySpec, where: str) -> None:
    prefix = "networks.lora_" if where == "network_module" else ""
    for name in family.kohya:
        assert imported({"network_dim": 4, where: prefix + name}).config.family.name == family.name


@pytest.mark.parametrize(("box", "family"), [("flux1_checkbox", "flux"), ("lumina_checkbox", "lumina2")])
def test_a_box_of_its_window_names_a_family(box: str, family: str) -> None:
    assert imported({"network_dim": 4, box: True}).config.family.name == family


def test_the_metadata_of_our_own_files_name_their_family() -> None:
    for model in published_models():
        if FAMILIES[model.family].kohya:
            assert model.kohya_name in FAMILIES[model.family].kohya


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"model_type": "x1"}, "x1"),
        ({"network_module": "networks.lora_x2"}, "x2"),
    ],
)
def test_a_family_that_is_not_here_is_refused_by_name(given: dict[str, Any], name: str) -> None:
    loaded = imported({"network_dim": 4, **given})
    (warning,) = [p for p in loaded.problems if p.path == "model.family"]
    assert name in warning.message
    (error,) = unsupported_settings(loaded.config)
    assert name in error.message
    assert all(spec.label in error.advice for spec in FAMILIES.values())


@pytest.mark.parametrize(
    "module", ["networks.lora", "networks.lora_fa", "networks.oft", "lycoris.kohya", "networks.dylora"]
)
def test_networks_of_sd_name_no_family(module: str) -> None:
    assert imported({"network_dim": 4, "network_module": module}).config.family.name == "sd"


MUSUBI = {"dit": "a.safetensors"}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"timestep_sampling": "sigma"}, ("uniform", 0.0, 0.0, 3.0, False)),
        ({}, ("uniform", 0.0, 0.0, 3.0, False)),
        (MUSUBI, ("uniform", 0.0, 0.0, 1.0, False)),
        ({**MUSUBI, "discrete_flow_shift": 2.2}, ("uniform", 0.0, 0.0, 2.2, False)),
        ({"model_type": "hunyuan_image"}, ("uniform", 0.0, 0.0, 5.0, False)),
        ({"model_type": "sd3", "discrete_flow_shift": 3.0}, ("uniform", 0.0, 0.0, 1.0, False)),
        ({"model_type": "anima"}, ("logit_normal", 0.0, 0.0, 1.0, False)),
        ({"timestep_sampling": "uniform", "weighting_scheme": "mode"}, ("uniform", 0.0, 0.0, 1.0, False)),
        ({"timestep_sampling": "sigmoid"}, ("logit_normal", 0.0, 0.0, 1.0, False)),
        ({"timestep_sampling": "shift"}, ("logit_normal", 0.0, 0.0, 3.0, False)),
        ({**MUSUBI, "timestep_sampling": "shift"}, ("logit_normal", 0.0, 0.0, 1.0, False)),
        ({"timestep_sampling": "flux_shift"}, ("logit_normal", 0.0, 0.0, 1.0, True)),
        ({"timestep_sampling": "nextdit_shift"}, ("uniform", 0.0, 0.0, 3.1582, True)),
        (
            {"weighting_scheme": "logit_normal", "logit_mean": 0.5, "logit_std": 2},
            ("logit_normal", 1.0, -0.5, 3.0, False),
        ),
        (
            {"model_type": "sd3", "weighting_scheme": "logit_normal", "logit_mean": 0.5, "training_shift": 2.0},
            ("logit_normal", 0.0, 0.5, 2.0, False),
        ),
        ({"weighting_scheme": "mode", "mode_scale": 0.8}, ("heavy_tail", 0.8, 0.0, 3.0, False)),
        ({"weighting_scheme": "cosmap"}, ("uniform", 0.0, 0.0, 3.0, False)),
    ],
)
def test_how_noise_levels_are_drawn(settings: dict[str, Any], expected: tuple[Any, ...]) -> None:
    noise = imported({"network_dim": 4, "model_type": "flux", **settings}).config.training.noise
    assert (noise.distribution, noise.noising_weight, noise.noising_bias, noise.shift, noise.dynamic_shift) == expected


@pytest.mark.parametrize(
    ("settings", "weighting"),
    [
        ({"weighting_scheme": "sigma_sqrt", **MUSUBI}, "sigma_sqrt"),
        ({"weighting_scheme": "cosmap", "timestep_sampling": "shift", **MUSUBI}, "cosmap"),
        ({"weighting_scheme": "mode", **MUSUBI}, "none"),
        ({"weighting_scheme": "cosmap", "model_type": "anima"}, "cosmap"),
        ({"weighting_scheme": "cosmap", "model_type": "sd3"}, "cosmap"),
        ({"weighting_scheme": "sigma_sqrt", "model_type": "sd3"}, "none"),
        ({"weighting_scheme": "cosmap", "model_prediction_type": "raw"}, "none"),
        ({"weighting_scheme": "cosmap", "model_prediction_type": "additive"}, "none"),
    ],
)
def test_schemes_that_weigh_the_loss(settings: dict[str, Any], weighting: str) -> None:
    """sd-scripts weighs only a "sigma_scaled" prediction, except Anima's; musubi-tuner weighs every loss."""
    loss = imported({"network_dim": 4, "model_type": "flux", **settings}).config.training.loss
    assert loss.weighting == weighting


def test_the_guidance_is_the_one_of_the_script() -> None:
    """musubi-tuner's without the key was sd-scripts' 3.5."""
    given = {"network_dim": 4, "model_type": "flux"}
    assert imported(given).config.model.family.guidance == 3.5
    assert imported(given | MUSUBI).config.model.family.guidance == 1.0
    assert imported(given | {"model_type": "flux2"}).config.model.family.guidance == 1.0


@pytest.mark.parametrize(
    "given",
    [{}, {"model_prediction_type": "additive"}, {"timestep_sampling": "qinglong"}],
)
def test_what_is_trained_in_another_way_is_named(given: dict[str, Any]) -> None:
    loaded = imported({"network_dim": 4, "model_type": "flux", **given})
    text = " ".join(p.message for p in loaded.problems if p.severity == "warning")
    assert all(str(value) in text for value in given.values())
    assert ("sigma_scaled" in text) == ("model_prediction_type" not in given)


def test_a_sampler_that_flow_models_lack_is_left_out() -> None:
    """kohya_ss writes euler_a for all models, and the check then refused each prompt."""
    given = {"network_dim": 4, "sample_prompts": "a zog", "sample_sampler": "euler_a"}
    for more, sampler in (({}, "euler_a"), ({"flux1_checkbox": True}, SamplePrompt().sampler)):
        [prompt] = imported({**given, **more}).config.sampling.prompts
        assert prompt.sampler == sampler


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("", "a cat --zz --w 768 --fs 3 --h 640 --ctr 0.25 --d 7 --n bad art --am 1.5 --l 4 --s 20 --ss k_euler"),
        ("p.txt", "# none\n\na cat --w 768 --h 640 --d 7 --n bad art --l 4 --s 20 --ss euler --f 1\n"),
        (
            "p.json",
            '[{"prompt": "a cat", "negative_prompt": "bad art", "width": 768, "height": 640, "seed": 7, "scale": 4,'
            '"sample_steps": 20, "sample_sampler": "euler", "frame_count": 1}]',
        ),
        ("p.json", '["a cat --w 768 --h 640 --d 7 --n bad art --l 4 --s 20 --ss euler"]'),
        (
            "p.toml",
            '[prompt]\nwidth = 768\nheight = 512\nsample_sampler = "euler"\n[[prompt.subset]]\nprompt = "a cat"\n'
            'negative_prompt = "bad art"\nheight = 640\nseed = 7\ncfg_scale = 4.0\nsample_steps = 20\n',
        ),
    ],
)
def test_sample_prompts_in_every_form(tmp_path: Path, name: str, text: str) -> None:
    """Each line of a JSON or TOML file was a prompt, and an option of more than one letter spoilt the one before."""
    if name:
        (tmp_path / name).write_text(text)
    given = {"network_dim": 4, "model_type": "lumina", "sample_prompts": str(tmp_path / name) if name else text}
    [prompt] = imported(given).config.sampling.prompts
    assert (prompt.prompt, prompt.negative_prompt, prompt.width_px, prompt.height_px) == ("a cat", "bad art", 768, 640)
    assert (prompt.seed, prompt.steps, prompt.guidance, prompt.sampler) == (7, 20, 4.0, "euler")


@pytest.mark.parametrize("text", ["{", '{"prompt": "a cat"}', "[" * 100_000, "7"])
def test_a_prompt_file_without_prompts_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "p.json").write_text(text)
    loaded = imported({"network_dim": 4, "sample_prompts": str(tmp_path / "p.json")})
    assert not loaded.config.sampling.prompts
    assert "could not be read" in " ".join(p.message for p in loaded.problems if p.path == "sampling.prompts")


def test_the_guidance_of_a_sample_is_the_one_that_the_model_has() -> None:
    given = {"network_dim": 4, "sample_prompts": "a cat --g 2.5 --l 4"}
    for name, guidance in (("flux", 2.5), ("lumina", 4.0)):
        [prompt] = imported({**given, "model_type": name}).config.sampling.prompts
        assert prompt.guidance == guidance


def test_the_loss_of_musubi_tuner_is_ours() -> None:
    """Its files have no `model_prediction_type`, and were reported to train otherwise."""
    loaded = imported({"network_dim": 4, "model_type": FAMILIES_THERE[0].kohya[0], "dit": "a.safetensors"})
    assert not [p for p in loaded.problems if p.severity != "info"]


def test_chosen_blocks_and_ranks_by_group() -> None:
    """With the names of transformers of double-stream and single-stream blocks, whichever families have them."""
    arguments = [
        "train_double_block_indices=0,3-4",
        "train_single_block_indices=none",
        "img_attn_dim=2",
        "txt_mlp_dim=0",
    ]
    given = {"network_dim": 4, "model_type": FAMILIES_THERE[0].kohya[0], "network_args": arguments}
    adapter = imported(given).config.adapter
    names = ("transformer_blocks.3.attn.to_q", "transformer_blocks.30.ff.net.2", "single_transformer_blocks.0.proj_out")
    assert [adapter_layers(adapter, {}).takes(name) for name in names] == [True, False, False]
    assert adapter.layer_ranks.splitlines() == [
        r"re:^transformer_blocks\.\d+\.attn\.to_(q|k|v|out) = 2",
        r"re:^transformer_blocks\.\d+\.ff_context\. = 0",
    ]
    none = ["train_double_block_indices=none", "train_single_block_indices=none"]
    assert "none of the blocks" in " ".join(p.message for p in imported({**given, "network_args": none}).problems)


def test_files_of_parts_belong_to_the_part_of_their_class(family: FamilySpec) -> None:
    files = {
        "clip_l": ["CLIPTextModel"],
        "t5xxl": ["T5EncoderModel"],
        "gemma2": ["Gemma2Model"],
        "ae": ["AutoencoderKL"],
    }
    files["text_encoder"] = ["Qwen3Model", "Qwen3VLTextModel", "Qwen2_5_VLTextModel"]
    given = {key: f"{key}.safetensors" for key in files}
    loaded = imported({"network_dim": 4, "model_type": family.kohya[0], **given})
    encoders = {part: key for model in files_of(family.name).models for part, key in model.comfy_encoders.items()}
    keys = {part.name: {k for k, names in files.items() if part.class_name in names} for part in family.parts}
    keys |= {part: {key} & files.keys() for part, key in encoders.items() if key in files}
    for part in family.parts:
        assert loaded.config.part(part.name).file == next((given[key] for key in keys[part.name]), "")
    unread = files.keys() - set().union(*keys.values())
    assert set(loaded.config.unknown.get("kohya", {})) == unread


def test_what_only_models_with_three_text_encoders_have() -> None:
    """sd-scripts' `sd3_train_network`."""
    given = {
        "network_module": "networks.lora_sd3",
        "clip_g": "clip_g.safetensors",
        "training_shift": 3.0,
        "weighting_scheme": "logit_normal",
        "t5xxl_max_token_length": 154,
        "t5_dropout_rate": 0.1,
        "learning_rate_te3": 1e-5,
        "network_args": ["train_t5xxl=True"],
    }
    config = imported({"network_dim": 4, **given}).config
    assert (config.family.name, config.model.family.text_tokens) == ("sd3", 154)
    assert config.part("text_encoder_2").file == "clip_g.safetensors"
    assert (config.training.noise.distribution, config.training.noise.shift) == ("logit_normal", 3.0)
    assert (config.data.caption_dropout, config.data.caption_dropout_2, config.data.caption_dropout_3) == (
        0.0,
        0.0,
        0.1,
    )
    assert (config.part("text_encoder_3").train, config.part("text_encoder_3").learning_rate) == (True, 1e-5)


@pytest.mark.parametrize("key", ["fp8_t5", "fp8_llm", "fp8_vl", "fp8_text_encoder"])
def test_float8_of_the_text_encoder_has_a_name_for_each_model(key: str) -> None:
    loaded = imported({"network_module": "networks.lora_qwen_image", "dit": "qwen.safetensors", key: True})
    assert loaded.config.part("text_encoder").dtype == "float8"
    assert "kohya" not in loaded.config.unknown


def test_a_dataset_config_of_musubi_tuner(tmp_path: Path) -> None:
    text = '[general]\ncaption_extension = ".txt"\nresolution = [960, 544]\n[[datasets]]\n'
    (tmp_path / "data.toml").write_text(text + 'image_directory = "a/cats"\nnum_repeats = 3\n')
    (concept,) = load_any(tmp_path / "data.toml").config.concepts
    assert (concept.path, concept.name, concept.repeats) == ("a/cats", "cats", 3)


def test_control_images_of_musubi_tuner_are_reference_images(tmp_path: Path) -> None:
    """A folder of equal names, and a JSONL file whose columns name them."""
    rows = [
        {"image_path": f"{tmp_path}/out/{n}.png", "caption": "x", "control_path_0": f"{tmp_path}/in/{n}.png"}
        | ({"control_path_1": f"{tmp_path}/style/{n}.png"} if n else {})
        for n in range(2)
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    folder = '[[datasets]]\nimage_directory = "a/cats"\ncontrol_directory = "a/before"\n'
    (tmp_path / "data.toml").write_text(f'{folder}[[datasets]]\nimage_jsonl_file = "{tmp_path}/rows.jsonl"\n')
    loaded = load_any(tmp_path / "data.toml")
    first, second = loaded.config.concepts
    assert loaded.config.model.variant == "edit"
    assert (first.path, first.image.conditioning_folder) == ("a/cats", "a/before")
    assert (second.path, second.caption_source) == (f"{tmp_path}/out", "metadata")
    assert second.metadata_file == f"{tmp_path}/rows.jsonl"
    assert second.image.conditioning_columns == "control_path_0, control_path_1"
    assert (second.image.conditioning_folder, second.image.conditioning_folder_2) == (
        f"{tmp_path}/in",
        f"{tmp_path}/style",
    )
    for name in ("out", "in", "style"):
        (tmp_path / name).mkdir()
        for number in range(2):
            Image.new("RGB", (64, 64)).save(tmp_path / name / f"{number}.png")
    # Of FLUX.1 Kontext; the config of a dataset alone names no model.
    model = {"model": {"family": {"name": "flux"}, "variant": "edit"}}
    of_second = decode(encode(loaded.config) | model | {"concepts": [second.model_dump()]}).config
    examples = ConceptPreview(of_second, 0).examples
    assert [len(e.input_files) for e in examples] == [1, 2]
    assert [e.image.captions for e in examples] == [("x",), ("x",)]


@pytest.mark.parametrize(
    ("line", "noted"),
    [
        ("control_resolution = [1024, 1024]", ""),
        ("qwen_image_edit_control_resolution = [1024, 1024]", ""),
        ("qwen_image_edit_control_resolution = [768, 768]", "qwen_image_edit_control_resolution = [768, 768]"),
        ("qwen_image_edit_no_resize_control = true", "qwen_image_edit_no_resize_control = true"),
        ("flux_kontext_no_resize_control = true", "flux_kontext_no_resize_control = true"),
        ("no_resize_control = false", None),
        ("", None),
    ],
)
def test_the_size_of_control_images_is_the_one_of_the_pipeline(tmp_path: Path, line: str, noted: str | None) -> None:
    """None: at the size of their image."""
    folder = '[[datasets]]\nimage_directory = "a/cats"\ncontrol_directory = "a/before"\n'
    (tmp_path / "data.toml").write_text(f"{folder}{line}\n")
    loaded = load_any(tmp_path / "data.toml")
    assert loaded.config.data.reference_size == ("image" if noted is None else "pipeline")
    notes = [p.message for p in loaded.problems if p.path == "data.reference_size"]
    if noted == "":
        assert not notes
    else:
        assert len(notes) == 1
        assert notes[0].startswith(noted or "Control images became reference images")


@pytest.mark.parametrize(("name", "variant"), [("edit_2509", "edit"), ("image_edit", "edit_one")])
def test_the_file_of_an_editing_model_states_its_variant(name: str, variant: str) -> None:
    """Datasets were converted before the files, and every model with control images was the newest editing model."""
    datasets = [{"image_directory": "a/cats", "control_directory": "a/before"}]
    given = {"network_module": "networks.lora_qwen_image", "dit": f"qwen_{name}_bf16.safetensors", "datasets": datasets}
    assert imported({**given, "network_dim": 4}).config.model.variant == variant


def test_a_jsonl_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "data.toml").write_text('[[datasets]]\nimage_jsonl_file = "gone.jsonl"\n')
    loaded = load_any(tmp_path / "data.toml")
    assert not loaded.config.concepts
    assert any("'gone.jsonl' cannot be read or names no images" in p.message for p in loaded.problems)


KEYS = [*SETTINGS, "model_type", "weighting_scheme", "logit_mean", "logit_std", "mode_scale", "t5xxl_max_token_length",
        "clip_l", "t5xxl", "ae", "dit", "fp8_scaled", "flux1_checkbox"]  # fmt: skip


@few
@given(st.dictionaries(st.sampled_from(KEYS), garbage, max_size=5))
def test_any_values_at_all_give_a_valid_config(values: dict[str, Any]) -> None:
    config = imported({**SETTINGS, "model_type": FAMILIES_THERE[0].kohya[0], **values}).config
    assert decode(encode(config)).config == config
