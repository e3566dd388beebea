"""OneTrainer's configs: supported settings are converted, and unsupported ones are reported."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modules.config.codec import LoadedConfig, decode, encode, load_file
from modules.config.migrations import darkroom_steps
from modules.config.migrations.onetrainer_11 import to_darkroom_1
from modules.config.migrations.onetrainer_steps import to_11
from modules.config.quantized_parts import quantized_parts
from modules.config.rules import problems_of
from modules.config.schema import Config
from modules.objectives.methods.alignprop import AlignProp
from modules.quantization.registry import Residual
from modules.settings.edit import choose_variant, get_path
from modules.settings.every import Every
from tests.unit.strategies import garbage
from tests.unit.test_codec import GROUPED, Grouping, assert_sound, holder_of, places

FIXTURES = Path(__file__).parent / "fixtures"
EVERYTHING: dict[str, Any] = json.loads((FIXTURES / "onetrainer_11.json").read_text())
OLDER: dict[str, Any] = json.loads((FIXTURES / "onetrainer_10.json").read_text())
READ_INSIDE = {"unet", "text_encoder", "vae", "optimizer", "concepts", "samples", "cloud"}
PLACES = {v: [p for p in places(t) if len(p) == 1 or p[0] in READ_INSIDE] for v, t in ((11, EVERYTHING), (10, OLDER))}
OPTIMIZER_KEYS = {"optimizer", "beta1", "eps", "decay_rate", "amsgrad"}
SHORT = {k: v for k, v in EVERYTHING.items() if not isinstance(v, dict) or k in READ_INSIDE}


def sparse(**keys: Any) -> dict[str, Any]:
    """A file with few keys: the missing ones have OneTrainer's defaults."""
    return {"training_method": "LORA", "learning_rate_warmup_steps": 0, **keys}


def loaded(**keys: Any) -> LoadedConfig:
    return decode(sparse(**keys))


def warnings_of(result: LoadedConfig) -> list[str]:
    return [str(p) for p in result.problems if p.severity == "warning"]


# -- whole files


@pytest.mark.parametrize("version", [11, 10])
def test_a_whole_file_gives_the_expected_config(version: int) -> None:
    expected = json.loads((FIXTURES / f"onetrainer_{version}.expected.json").read_text())
    result = load_file(FIXTURES / f"onetrainer_{version}.json") if version == 11 else decode(OLDER)
    # The fixture contains what differs from our defaults.
    assert decode(expected["config"]) == LoadedConfig(result.config.model_copy(update={"unknown": {}}))
    assert [[p.severity, str(p)] for p in result.problems] == expected["problems"]
    assert result.was_migrated


# Keys without meaning for the models here; all others are converted.
OTHER_KINDS = {
    "async_offloading", "cloud", "decoder", "decoder_text_encoder", "decoder_vqgan", "dynamic_timestep_shifting",
    "effnet_encoder", "embedding", "frames", "prior", "sample_audio_format", "sample_video_format", "samples",
    "text_encoder", "text_encoder_2", "text_encoder_2_sequence_length", "text_encoder_3", "text_encoder_3_layer_skip",
    "text_encoder_4", "text_encoder_4_layer_skip", "text_encoder_sequence_length", "transformer",
    "unconditional_transformer", "unet", "vae", "vb_loss_strength",
}  # fmt: skip


def test_keys_of_other_models_are_kept_with_their_values() -> None:
    kept = decode(EVERYTHING).config.unknown["onetrainer"]
    assert kept.keys() == OTHER_KINDS
    whole = kept.keys() - {"unet", "text_encoder", "text_encoder_2", "vae", "samples"}
    assert {key: kept[key] for key in whole} == {key: EVERYTHING[key] for key in whole}


def test_unused_keys_inside_objects_and_lists_are_kept_too() -> None:
    """The rest of the parts and the samples used to vanish."""
    kept = decode(EVERYTHING).config.unknown["onetrainer"]
    assert kept["unet"] == {k: EVERYTHING["unet"][k] for k in kept["unet"]}
    assert kept["unet"].keys() == {"model_name", "include", "dropout_probability", "attention_mask", "guidance_scale"}
    assert kept["samples"][1].keys() == {
        "frames", "length", "text_encoder_1_sequence_length", "text_encoder_2_sequence_length",
        "transformer_attention_mask",
    }  # fmt: skip


def test_secrets_leave_no_trace() -> None:
    text = json.dumps(encode(decode(EVERYTHING).config))
    assert "hf_not_a_token" not in text
    assert "not a key" not in text
    assert "secrets" not in text
    message = " ".join(str(p) for p in decode(EVERYTHING).problems if p.path == "secrets")
    assert "secrets import FILE" in message


def test_a_migrated_config_is_saved_and_loaded_without_a_problem() -> None:
    first = decode(EVERYTHING).config
    again = decode(json.loads(json.dumps(encode(first))))
    assert again == LoadedConfig(first)


@pytest.mark.parametrize("tree", [EVERYTHING, OLDER], ids=["11", "10"])
def test_the_steps_are_pure(tree: dict[str, Any]) -> None:
    before = copy.deepcopy(tree)
    to_darkroom_1(to_11(tree, []) if tree is OLDER else tree, [])
    decode(tree)
    assert tree == before


# -- any part of a file, any nonsense in it


@given(gone=st.sets(st.sampled_from(sorted(EVERYTHING)), max_size=len(EVERYTHING)), version=st.sampled_from([10, 11]))
def test_any_keys_may_be_missing(gone: set[str], version: int) -> None:
    tree = {k: v for k, v in (EVERYTHING if version == 11 else OLDER).items() if k not in gone}
    assert_sound(decode(tree))


@GROUPED
@pytest.mark.parametrize("version", [10, 11])
def test_each_key_may_be_missing(version: int, grouped: Grouping) -> None:
    whole = EVERYTHING if version == 11 else OLDER
    for group in grouped([place for place in PLACES[version] if isinstance(place[-1], str)]):
        tree = copy.deepcopy(whole)
        for place in group:
            del holder_of(tree, place)[place[-1]]
        assert isinstance(decode(tree).config, Config)


@given(data=st.data(), version=st.sampled_from([10, 11]))
def test_any_value_may_be_nonsense(data: st.DataObject, version: int) -> None:
    tree = copy.deepcopy(EVERYTHING if version == 11 else OLDER)
    changes = data.draw(st.lists(st.tuples(st.sampled_from(PLACES[version]), garbage), min_size=1, max_size=5))
    for place, value in sorted(changes, key=lambda change: -len(change[0])):
        holder_of(tree, place)[place[-1]] = copy.deepcopy(value)
    assert_sound(decode(tree))


@GROUPED
@pytest.mark.daily(2)
@pytest.mark.parametrize(
    "value",
    [
        *(None, "x", -1, True, float("nan"), pytest.param(10**400, id="huge"), ["a"], {"a": 1}),
        *(pytest.param(value, marks=pytest.mark.full) for value in ([], {}, "", 0.5)),
    ],
    ids=repr,
)
def test_one_kind_of_nonsense_everywhere(value: Any, grouped: Grouping) -> None:
    """An unhashable kind of concept, and a number beyond floats, used to raise."""
    for group in grouped([p for p in PLACES[11] if p[0] != "optimizer" or p[-1] in OPTIMIZER_KEYS]):
        tree = copy.deepcopy(SHORT)
        for place in group:
            holder_of(tree, place)[place[-1]] = copy.deepcopy(value)
        assert isinstance(decode(tree).config, Config)
    assert_sound(decode({key: copy.deepcopy(value) for key in EVERYTHING}))


def test_a_value_of_a_wrong_type_is_reported() -> None:
    for key, value in {
        "unet": 5,
        "optimizer": 5,
        "concepts": {"path": "x"},
        "samples": 3,
        "resolution": None,
        "sample_after": "often",
        "learning_rate_warmup_steps": "some",
        "model_type": 15,
        "batch_size": "two",
        "ema": ["GPU"],
    }.items():
        assert len(warnings_of(loaded(**{key: value}))) == 1, key


# -- which file is which


@pytest.mark.parametrize("version", [12, 99, 10**400])
def test_a_newer_onetrainer(version: int) -> None:
    result = decode({**EVERYTHING, "__version": version, "brand_new": 5})
    assert any("newer OneTrainer" in w for w in warnings_of(result))
    assert result.config.unknown["onetrainer"]["brand_new"] == 5
    assert result.config.training == decode(EVERYTHING).config.training


@pytest.mark.parametrize("version", ["11", None, -1, True, 3.5, [], {}])
def test_an_invalid_version_is_read_as_the_newest(version: Any) -> None:
    assert decode({**EVERYTHING, "__version": version}).config == decode(EVERYTHING).config


# -- checkpointing and offloading


def test_in_version_11_each_part_has_its_own_settings() -> None:
    result = loaded(__version=11, unet={"gradient_checkpointing": False, "activation_offloading": True})
    assert result.config.part("unet").checkpointing == "off"
    assert result.config.part("unet").offload_activations
    assert result.config.part("text_encoder").checkpointing == "block"


def test_layers_that_were_offloaded_are_refused_part_by_part() -> None:
    result = loaded(
        gradient_checkpointing="CPU_OFFLOADED", layer_offload_fraction=0.5, vae={}, concepts=[{"path": "x"}]
    )
    assert result.config.part("unet").offload_fraction == 0.5
    assert warnings_of(result) == []


# -- defaults


def test_missing_keys_have_their_defaults() -> None:
    """A file without a learning rate meant 0.000003; ours is thirty times that."""
    config = decode({"__version": 11}).config
    assert config.training.trains == "full"
    assert config.training.learning_rate == 3e-6
    assert config.training.epochs == 100
    assert config.training.precision == "float16"
    assert config.training.schedule.warmup_steps == 200
    assert config.training.ema.update_every_steps == 5
    assert config.adapter.alpha == 1.0
    assert config.adapter.layers == "all"
    assert config.general.cache_dir == "workspace-cache/run"
    assert config.sampling.every == Every(n=10, unit="minute")
    assert config.sampling.image_format == "jpg"
    assert config.backup.every == Every(n=30, unit="minute")
    assert config.backup.save_every.is_never
    assert config.backup.keep == 0
    assert config.validation.every.is_never
    assert config.output.dtype == "float32"
    assert config.output.embed_config == "none"
    assert config.output.destination == "models/model.safetensors"
    assert config.part("unet").stop_after.is_never
    assert config.part("unet").checkpointing == "block"
    assert config.part("text_encoder").stop_after == Every(n=30, unit="epoch")
    assert config.data.max_aspect_ratio == 4.0
    assert config.data.bucket_step_px == 8


# -- steps


@pytest.mark.parametrize(
    ("batches", "accumulation", "steps"),
    [(100, 1, 100), (100, 4, 25), (10, 4, 3), (1, 4, 1), (100, "4", 25), (9, 2.0, 5)],
)
def test_their_step_is_a_batch_ours_an_optimizer_step(batches: int, accumulation: Any, steps: int) -> None:
    result = loaded(
        gradient_accumulation_steps=accumulation,
        sample_after=batches,
        sample_after_unit="STEP",
        backup_after=batches,
        backup_after_unit="STEP",
        save_every=batches,
        save_every_unit="STEP",
        validation=True,
        validate_after=batches,
        validate_after_unit="STEP",
        text_encoder={"stop_training_after": batches, "stop_training_after_unit": "STEP"},
    )
    config, every = result.config, Every(n=steps, unit="step")
    assert config.training.accumulation_steps == int(accumulation)
    assert config.sampling.every == every
    assert config.backup.every == every
    assert config.backup.save_every == every
    assert config.validation.every == every
    assert config.part("text_encoder").stop_after == every


@pytest.mark.parametrize(
    ("given", "unit", "expected"),
    [
        (3, "EPOCH", Every(n=3, unit="epoch")),
        (90, "SECOND", Every(n=90, unit="second")),
        (1.5, "MINUTE", Every(n=1.5, unit="minute")),
        ("2", "HOUR", Every(n=2, unit="hour")),
        (7, "NEVER", Every()),
        (7, "ALWAYS", Every(n=1, unit="step")),
        (0, "EPOCH", Every()),
        (-4, "STEP", Every()),
        (7, "FORTNIGHT", Every(n=10, unit="minute")),
        (7, None, Every(n=10, unit="minute")),
        ("soon", "STEP", Every(n=10, unit="minute")),
        (None, "STEP", Every(n=10, unit="minute")),
    ],
)
def test_units_of_time(given: Any, unit: Any, expected: Every) -> None:
    result = loaded(gradient_accumulation_steps=4, sample_after=given, sample_after_unit=unit)
    assert result.config.sampling.every == expected


def test_a_part_without_an_end_has_none() -> None:
    result = loaded(text_encoder={"stop_training_after": None, "stop_training_after_unit": "EPOCH"})
    assert result.config.part("text_encoder").stop_after.is_never
    assert warnings_of(result) == []


@pytest.mark.parametrize(
    ("given", "steps", "share"),
    [
        (200, 50, 0.0),
        (201, 51, 0.0),
        (1.5, 1, 0.0),
        (1, 0, 1.0),
        (0.25, 0, 0.25),
        (0, 0, 0.0),
        (-3, 0, 0.0),
        ("8", 2, 0.0),
    ],
)
def test_warm_up_above_one_is_in_batches_up_to_one_a_fraction(given: Any, steps: int, share: float) -> None:
    result = loaded(gradient_accumulation_steps=4, learning_rate_warmup_steps=given)
    schedule = result.config.training.schedule
    assert (schedule.warmup_steps, schedule.warmup_share) == (steps, share)
    assert warnings_of(result) == []


# -- single settings


@pytest.mark.parametrize(
    ("given", "sides", "warns"),
    [
        ("512", (512,), False),
        (" 512, 768 ", (512, 768), False),
        ("512,768,", (512, 768), False),
        (640, (640,), False),
        (512.0, (512,), False),  # used to become 512 and 0
        ([512, "768"], (512, 768), False),
        ("1024x768", (512,), False),  # a fixed size; see below
        (" 1024 X 768 ", (512,), False),
        ("512,1024x768", (512, "1024x768"), False),
        ("1024x768,640x640", ("1024x768", "640x640"), False),
        ("123456", (512,), True),  # used to become 12345 and 6
        ("large", (512,), True),
        ("", (512,), True),
        (None, (512,), True),
        ({}, (512,), True),
    ],
)
def test_resolution(given: Any, sides: tuple[int | str, ...], warns: bool) -> None:
    result = loaded(resolution=given)
    assert result.config.data.resolution_px == sides
    assert bool(warnings_of(result)) == warns


@pytest.mark.parametrize("given", ["1024x768", " 1024 X 768 "])
def test_one_fixed_size(given: str) -> None:
    result = loaded(resolution=given)
    assert (result.config.data.fixed_width_px, result.config.data.fixed_height_px) == (1024, 768)
    assert not warnings_of(result)


def test_optimizers_and_schedules() -> None:
    """Their fields are tested in test_optimizer_sections; this checks that they arrive."""
    result = loaded(
        optimizer={"optimizer": "PRODIGY", "d_coef": 2.0},
        optimizer_defaults={"ADAMW": {"optimizer": "ADAMW", "beta1": 0.5}, "NEW": {"optimizer": "NEW"}},
        learning_rate_scheduler="REX",
    )
    assert (result.config.training.optimizer.name, result.config.training.schedule.name) == ("prodigy", "rex")
    assert result.config.training.optimizer.model_dump()["d_coef"] == 2.0
    assert result.config.remembered == {"training.optimizer": {"adamw": {"beta1": 0.5}}}
    assert result.config.unknown["onetrainer"] == {"optimizer_defaults": {"NEW": {"optimizer": "NEW"}}}
    assert warnings_of(result) == []


@pytest.mark.parametrize(
    ("dtype", "asked", "expected"),
    [("BFLOAT_16", True, "stochastic"), ("BFLOAT_16", False, "master"), ("FLOAT_32", True, "master")],
)
def test_stochastic_rounding_is_a_setting_of_the_weights(dtype: str, asked: bool, expected: str) -> None:
    optimizer = {"optimizer": "ADAMW", "stochastic_rounding": asked}
    full = loaded(training_method="FINE_TUNE", unet={"weight_dtype": dtype}, optimizer=optimizer)
    lora = loaded(lora_weight_dtype=dtype, optimizer=optimizer)
    flow = loaded(
        model_type="Z_IMAGE", training_method="FINE_TUNE", transformer={"weight_dtype": dtype}, optimizer=optimizer
    )
    assert [r.config.training.low_precision_updates for r in (full, lora, flow)] == [expected] * 3


def test_the_dtype_of_a_vae_that_is_not_trained_does_not_choose_stochastic_rounding() -> None:
    optimizer = {"optimizer": "ADAMW", "stochastic_rounding": True}
    result = loaded(training_method="FINE_TUNE", vae={"weight_dtype": "BFLOAT_16"}, optimizer=optimizer)
    assert result.config.training.low_precision_updates == "master"


def test_a_loss_that_older_files_of_ours_lack_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key of OneTrainer's in a new record has no place in our version 1."""
    monkeypatch.setattr(darkroom_steps, "_LOSSES", ("mse",))
    result = loaded(mse_strength=0.5, mae_strength=0.75)
    mix = result.config.training.loss.mix.model_dump()
    assert {name: entry["strength"] for name, entry in mix.items() if entry["strength"]} == {"mse": 0.5, "mae": 0.75}
    assert "training.loss" not in str(result.config.unknown)


def test_the_batch_size_of_several_gpus_is_that_of_all_of_them() -> None:
    result = loaded(concepts=[{"path": "x"}], multi_gpu=True, batch_size=4)
    assert (result.config.multi_gpu.enabled, result.config.training.batch_size) == (True, 4)
    [problem] = [p for p in result.problems if p.severity == "warning"]
    assert problem.path == "training.batch_size"
    assert [p.path for p in problems_of(result.config) if p.severity == "error"] == []


def test_a_quantized_base_with_a_residual_is_read() -> None:
    own = {"svd_dtype": "BFLOAT_16", "svd_rank": 32, "cache_dir": "q", "layer_filter_preset": "attn-mlp"}
    result = loaded(concepts=[{"path": "x"}], quantization=own, unet={"weight_dtype": "NFLOAT_4"})
    assert warnings_of(result) == []
    assert [p.path for p in problems_of(result.config) if p.severity == "error"] == []
    found = result.config.quantization
    assert (found.svd_dtype, found.svd_rank, found.cache_dir, found.layers) == ("bfloat16", 32, "q", "attention_mlp")
    assert quantized_parts(result.config).formats["unet"].residual == Residual(32, "bfloat16")


def test_conditioning_images_had_an_effect_on_inpainting_models_only() -> None:
    def found(**keys: Any) -> list[tuple[str, str]]:
        config = loaded(concepts=[{"path": "x"}], custom_conditioning_image=True, **keys).config
        assert config.masks.custom_conditioning_image
        return [(p.path, p.severity) for p in problems_of(config)]

    assert ("masks.custom_conditioning_image", "warning") in found()
    of_inpainting = found(model_type="STABLE_DIFFUSION_15_INPAINTING")
    assert not any(path.startswith("masks") or severity == "error" for path, severity in of_inpainting)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("layer_filter_preset", "blocks"), ("output_model_format", "ORIGINAL_LORA"), ("train_dtype", "FLOAT_8"),
        ("loss_weight_fn", "P3"), ("peft_type", "LORA_2"), ("align_prop_loss", "BEAUTY"),
        ("sample_skip_first", "some"), ("additional_embeddings", 5), ("attention_mechanism", "TELEPATHY"),
    ],
)  # fmt: skip
def test_an_unknown_name_is_reported(key: str, value: Any) -> None:
    result = loaded(**{key: value})
    assert len(warnings_of(result)) == 1
    assert key in warnings_of(result)[0] or key == "additional_embeddings"


@pytest.mark.parametrize(
    ("key", "value", "path", "ours"),
    [
        ("attention_mechanism", "XFORMERS", "training.attention", "sdpa"),
        ("attention_mechanism", "DEFAULT", "training.attention", "sdpa"),
        ("output_model_format", "CKPT", "output.model_format", "single_file"),
        ("output_model_format", "ORIGINAL_SINGLE_FILE", "output.model_format", "single_file"),
        ("output_model_format", "INTERNAL", "output.model_format", "diffusers"),
        ("output_model_format", "ORIGINAL_TRANSFORMER", "output.model_format", "single_file"),
        ("output_model_format", "COMFY_TRANSFORMER", "output.model_format", "single_file"),
        ("rescale_noise_scheduler_to_zero_terminal_snr", True, "model.family.prediction_type", "v_prediction"),
        ("rescale_noise_scheduler_to_zero_terminal_snr", True, "model.family.zero_terminal_snr", "on"),
        ("force_epsilon_prediction", True, "model.family.prediction_type", "epsilon"),
    ],
)
def test_other_names_get_the_closest_meaning(key: str, value: Any, path: str, ours: str) -> None:
    result = loaded(training_method="FINE_TUNE", **{key: value})
    assert get_path(result.config, path) == ours


def test_settings_without_effect_give_no_warning() -> None:
    kept = decode(EVERYTHING).config.unknown["onetrainer"]
    assert warnings_of(loaded(**{k: v for k, v in EVERYTHING.items() if k in kept and k != "samples"})) == []


def test_alignprops_keys_are_converted() -> None:
    keys = {"align_prop_steps": 30, "align_prop_weight": 0.02, "align_prop_loss": "HPS"}
    on, off = loaded(align_prop=True, **keys), loaded(align_prop=False, **keys)
    theirs = {"probability": 0.1, "steps": 30, "weight": 0.02, "backprop_steps": 30, "backprop_steps_min": 15}
    assert on.config.training.method == AlignProp(
        **theirs, guidance=7.0, gradient_truncation="uniform", loss="target", target_reward=1.0
    )
    assert [s.kind for s in on.config.reward.models] == ["hps"]
    assert off.config.training.method.name == "denoise"
    remembered = theirs | {"loss": "target", "target_reward": 1.0}
    assert off.config.remembered == {"training.method": {"alignprop": remembered}}
    assert choose_variant(off.config, "training.method", "alignprop")[0].training.method == on.config.training.method


def test_alignprops_defaults_are_written_out() -> None:
    """They are not ours: a random fraction of up to 0.5 of 20 steps without gradient is K from 10 to 20."""
    result = loaded(align_prop=True)
    theirs = {
        "probability": 0.1,
        "weight": 0.01,
        "steps": 20,
        "guidance": 7.0,
        "backprop_steps": 20,
        "backprop_steps_min": 10,
    }
    assert result.config.training.method == AlignProp(
        **theirs, gradient_truncation="uniform", loss="target", target_reward=10.0
    )
    assert [s.kind for s in result.config.reward.models] == ["aesthetic"]
    all_of_it = loaded(align_prop=True, align_prop_truncate_steps=1.0).config.training.method
    assert (all_of_it.backprop_steps_min, all_of_it.backprop_steps) == (1, 20)
    less_noise = loaded(align_prop=True, max_noising_strength=0.8).config.training.method
    assert (less_noise.backprop_steps_min, less_noise.backprop_steps) == (8, 16)
    for key in ("align_prop_steps", "align_prop_truncate_steps", "align_prop_cfg_scale"):
        assert loaded(align_prop=True, **{key: "many"}).config.training.method.name == "alignprop"


def test_alignprop_that_was_never_used_leaves_nothing() -> None:
    theirs = {
        "align_prop": False, "align_prop_probability": 0.1, "align_prop_weight": 0.01, "align_prop_steps": 20,
        "align_prop_truncate_steps": 0.5, "align_prop_cfg_scale": 7.0, "align_prop_loss": "AESTHETIC",
    }  # fmt: skip
    result = loaded(**theirs)
    assert result.config.remembered == {}
    assert result.config.reward.models == ()
    assert "align_prop" not in str(result.config.unknown)


def test_onetrainers_oft_rotates_inputs() -> None:
    oft = loaded(peft_type="OFT_2", oft_block_size=16, oft_scaled=True, oft_block_share=True, dropout_probability=0.1)
    own = oft.config.adapter.model_dump()
    wanted = {"rotates": "inputs", "block_size": 16, "scaled": True, "block_share": True, "dropout": 0.1}
    assert {name: own[name] for name in wanted} == wanted
    assert [p.path for p in oft.problems if p.severity == "info"] == ["adapter.rotates"]


def test_missing_adapter_settings_have_the_defaults_of_onetrainer() -> None:
    lokr = loaded(peft_type="LOKR", lokr_weight_decompose=True).config.adapter
    lora = loaded(peft_type="LORA", lora_decompose=True, lora_weight_dtype="TFLOAT_32").config.adapter
    assert [lokr.model_dump()["decompose_output_axis"], lora.model_dump()["decompose_output_axis"]] == [True, False]
    assert lora.dtype == "float32"


def test_remembered_dora_has_the_axis_of_onetrainer() -> None:
    lokr = loaded(lokr_weight_decompose=True).config.remembered["adapter"]["lokr"]
    lora = loaded(peft_type="LOKR", lora_decompose=True, lora_decompose_output_axis=False).config.remembered["adapter"]
    assert [lokr["decompose_output_axis"], lora["lora"]["decompose_output_axis"]] == [True, False]


def test_settings_of_other_adapter_types_are_remembered() -> None:
    config = loaded(lora_rank=8, lokr_dim=4, lokr_use_tucker=True, oft_block_size=16).config
    assert config.remembered == {"adapter": {"lokr": {"rank": 4, "use_tucker": True}, "oft": {"block_size": 16}}}
    lokr = loaded(peft_type="LOKR", lora_rank=8, lokr_dim=4, lokr_use_tucker=True).config
    assert choose_variant(config, "adapter", "lokr")[0].adapter.model_dump()["rank"] == 4
    assert (lokr.adapter.name, lokr.remembered) == ("lokr", {"adapter": {"lora": {"rank": 8}}})


@pytest.mark.parametrize("model_type", ["KANDINSKY_21", "ONE_OF_LATER_YEARS"])
def test_another_model_is_an_error_until_it_is_supported(model_type: str) -> None:
    result = loaded(model_type=model_type, concepts=[{"path": "x"}])
    assert [p.severity for p in result.problems if p.path == "model.family"] == ["warning"]
    for config in (result.config, decode(encode(result.config)).config):  # saved and loaded it still is
        errors = [p for p in problems_of(config) if p.severity == "error"]
        assert [p.path for p in errors] == ["model.family"]
        assert model_type in errors[0].message


@pytest.mark.parametrize(
    ("model_type", "family", "bucket_step_px"),
    [("STABLE_DIFFUSION_15", "sd", 8), ("STABLE_DIFFUSION_21", "sd", 8), ("STABLE_DIFFUSION_XL_10_BASE", "sdxl", 64)],
)
def test_a_model_type_becomes_its_family(model_type: str, family: str, bucket_step_px: int) -> None:
    result = loaded(model_type=model_type, concepts=[{"path": "x"}])
    assert (result.config.model.family.name, result.config.data.bucket_step_px) == (family, bucket_step_px)
    assert warnings_of(result) == []
    assert not [p for p in problems_of(result.config) if p.severity == "error"]


def test_both_text_encoders_of_sdxl_are_converted() -> None:
    result = loaded(
        model_type="STABLE_DIFFUSION_XL_10_BASE",
        text_encoder={"train": False, "dropout_probability": 0.1},
        text_encoder_2={"train": True, "learning_rate": 2e-5, "dropout_probability": 0.1, "weight_dtype": "BFLOAT_16"},
        text_encoder_layer_skip=1,
        text_encoder_2_layer_skip=1,
    )
    first, second = (result.config.part(n) for n in ("text_encoder", "text_encoder_2"))
    assert (first.train, second.train, second.learning_rate, second.dtype) == (False, True, 2e-5, "bfloat16")
    assert (second.stop_after.n, second.stop_after.unit) == (30, "epoch")
    assert (result.config.model.family.clip_skip, result.config.data.caption_dropout) == (1, 0.1)
    assert (result.config.model.family.clip_skip_2, result.config.data.caption_dropout_2) == (None, None)
    assert warnings_of(result) == []


def test_different_settings_of_the_second_text_encoder_are_kept() -> None:
    result = loaded(
        model_type="STABLE_DIFFUSION_XL_10_BASE",
        text_encoder={"dropout_probability": 0.1},
        text_encoder_2={"dropout_probability": 0.5},
        text_encoder_2_layer_skip=2,
    )
    assert (result.config.model.family.clip_skip, result.config.model.family.clip_skip_2) == (0, 2)
    assert (result.config.data.caption_dropout, result.config.data.caption_dropout_2) == (0.1, 0.5)
    assert warnings_of(result) == []


@pytest.mark.parametrize(
    ("model_type", "given", "expected"),
    [("STABLE_DIFFUSION_15", "LEGACY_LORA", "kohya"), ("Z_IMAGE", "LEGACY_LORA", "auto"), ("Z_IMAGE", None, "auto"),
     ("Z_IMAGE", "COMFY_LORA", "comfyui"), ("Z_IMAGE", "KOHYA_LORA", "kohya"), ("Z_IMAGE", "ORIGINAL_LORA", "comfyui")],
)  # fmt: skip
def test_a_lora_has_a_format_that_other_programs_load(model_type: str, given: str | None, expected: str) -> None:
    """Those of families that kohya's programs lack had kohya's names, which no program loads completely."""
    stated = {"output_model_format": given} if given else {}
    result = loaded(training_method="LORA", model_type=model_type, concepts=[{"path": "x"}], **stated)
    assert result.config.output.format == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [("SAFETENSORS", "single_file"), ("LEGACY_SAFETENSORS", "single_file"), ("CKPT", "single_file"),
     ("DIFFUSERS", "diffusers")],
)  # fmt: skip
def test_a_fine_tune_keeps_its_output_format(given: str, expected: str) -> None:
    result = loaded(training_method="FINE_TUNE", output_model_format=given, concepts=[{"path": "x"}])
    assert (result.config.training.trains, result.config.output.model_format) == ("full", expected)
    assert warnings_of(result) == []
    assert not [p for p in problems_of(result.config) if p.severity == "error"]


def test_a_fine_tune_of_the_vae_is_ready_to_start() -> None:
    config = loaded(training_method="FINE_TUNE_VAE", concepts=[{"path": "x"}]).config
    assert config.training.trains == "vae"
    assert [p.path for p in problems_of(config) if p.severity == "error"] == []


# -- concepts and samples


def test_concepts() -> None:
    result = decode(EVERYTHING)
    cat, held_out, prior = result.config.concepts
    assert (cat.name, cat.path, cat.repeats, cat.loss_weight) == ("cat", "datasets/cat", 2.5, 0.5)
    assert (cat.include_subfolders, cat.kind, cat.enabled) == (True, "training", True)
    assert (cat.image.flip, cat.text.shuffle_tags, cat.seed) == ("random", True, -714360451)
    assert held_out.kind == "validation"
    assert (prior.kind, prior.caption_source) == ("prior_prediction", "file_name")
    assert (prior.balancing, prior.samples_per_epoch, prior.repeats) == ("samples", 200, 1.0)
    refused = [p.path for p in problems_of(result.config) if p.severity == "error" and p.path.startswith("concepts")]
    assert refused == []


def test_crop_jitter_is_on_unless_it_is_switched_off() -> None:
    result = loaded(concepts=[{"path": "a"}, {"path": "b", "image": {"enable_crop_jitter": False}}, {"path": "c"}])
    assert [c.image.crop_jitter for c in result.config.concepts] == [True, False, True]


def test_buckets_have_onetrainer_s_aspect_ratios() -> None:
    data = loaded(model_type="STABLE_DIFFUSION_15").config.data
    assert (data.bucket_aspect_ratios, data.max_aspect_ratio, data.bucket_step_px) == ("fixed", 4.0, 8)


@pytest.mark.parametrize(
    ("override", "sides", "warns"),
    [("640", (640,), False), ("512, 768", (512, 768), False), ("1024x768", ("1024x768",), False), ("large", (), True)],
)
def test_a_concept_s_own_resolution(override: str, sides: tuple[int, ...], warns: bool) -> None:
    image = {"enable_resolution_override": True, "resolution_override": override}
    result = loaded(concepts=[{"path": "a", "image": image}])
    assert result.config.concepts[0].image.resolution_px == sides
    assert bool(warnings_of(result)) == warns


def test_concepts_of_older_versions() -> None:
    former = {"path": "b", "validation_concept": True}
    result = loaded(concepts=[{"path": "a", "repeats": 3}, former, former | {"type": None}])
    kinds = [(c.repeats, c.kind) for c in result.config.concepts]
    assert kinds == [(3.0, "training"), (1.0, "validation"), (1.0, "validation")]
    assert result.config.unknown.get("onetrainer", {}).get("concepts") is None


def test_invalid_concepts_are_left_out_and_reported() -> None:
    result = loaded(concepts=[5, {"path": "a", "type": []}, None, {"path": "b", "text": "x", "image": 3}])
    assert [c.path for c in result.config.concepts] == ["a", "b"]
    assert not result.config.concepts[0].enabled
    assert len(warnings_of(result)) == 5


def test_samples() -> None:
    result = decode(EVERYTHING)
    first, second = result.config.sampling.prompts
    assert (first.prompt, first.negative_prompt, first.seed) == ("a photo of sks cat", "blurry", 7)
    assert (first.steps, first.guidance, first.sampler) == (20, 6.0, "dpmpp_karras")
    assert (second.width_px, second.height_px, second.enabled) == (512, 768, False)
    assert second.random_seed
    assert second.sampler == EVERYTHING["samples"][1]["noise_scheduler"].lower()


@pytest.mark.parametrize(
    "given",
    [{"peft_type": "LOHA"}, {"peft_type": "OFT_2"}, {"lora_decompose": True, "lora_decompose_output_axis": False}],
)
def test_an_adapter_that_the_usual_format_cannot_hold_has_kohyas(given: dict[str, Any]) -> None:
    """The check refused the run: diffusers' format, which PixArt's and Sana's adapters have, holds none of these."""
    raw = {"training_method": "LORA", "model_type": "SANA", "concepts": [{"path": "x"}], **given}
    config = loaded(**raw).config
    assert config.output.format == "kohya"
    assert not [p for p in problems_of(config) if p.path == "output.format"]


def test_samplers_that_flow_models_lack_are_euler_as_there() -> None:
    """The check refused each of these samples."""
    names = ("EULER_A", "DPMPP_SDE", "DDIM")
    flow = loaded(model_type="Z_IMAGE", samples=[{"noise_scheduler": name} for name in names])
    assert [prompt.sampler for prompt in flow.config.sampling.prompts] == ["euler", "euler", "ddim"]
    message = "OneTrainer samples Z-Image with Euler, not with DPM++ 2M SDE or Euler a; so does this."
    assert [p.severity for p in flow.problems if p.message == message] == ["info"]


def test_an_unknown_sampler_is_reported() -> None:
    result = loaded(samples=[{"noise_scheduler": "TELEPATHY"}])
    assert result.config.sampling.prompts[0].sampler == "ddim"
    assert [p.path for p in result.problems if p.severity == "warning"] == ["sampling.prompts.0.sampler"]


def test_a_sample_without_a_size_has_that_of_the_family() -> None:
    for model_type, side_px in (("STABLE_DIFFUSION_15", 512), ("STABLE_DIFFUSION_XL_10_BASE", 1024)):
        (sample,) = loaded(model_type=model_type, samples=[{}]).config.sampling.prompts
        assert (sample.width_px, sample.height_px, sample.steps, sample.guidance) == (side_px, side_px, 30, 7.5)
        assert sample.sampler == "euler_a"


@pytest.mark.parametrize("given", [{"sample_after_unit": "NEVER"}, {"sample_after": 0, "sample_after_unit": "EPOCH"}])
def test_sampling_never_also_means_not_at_start_and_end(given: dict[str, Any]) -> None:
    sampling = loaded(**given).config.sampling
    assert (sampling.every.is_never, sampling.at_start, sampling.at_end) == (True, False, False)
    assert loaded().config.sampling.at_start


# -- masks

MASKED = {"masked_training": True, "normalize_masked_area_loss": True}


def test_a_masked_preset_loads_and_is_not_refused() -> None:
    """OneTrainer's preset "#sd 1.5 masked", a sparse file without a version."""
    result = decode(
        {
            "base_model_name": "runwayml/stable-diffusion-v1-5", "batch_size": 4, "masked_training": True,
            "max_noising_strength": 0.8, "model_type": "STABLE_DIFFUSION_15", "normalize_masked_area_loss": True,
            "output_model_destination": "models/model.safetensors", "output_model_format": "SAFETENSORS",
            "resolution": "512", "training_method": "FINE_TUNE", "vae": {"weight_dtype": "FLOAT_32"},
        }
    )  # fmt: skip
    masks, noise = result.config.masks, result.config.training.noise
    assert (masks.enabled, masks.normalize_area_loss, masks.unmasked_weight) == (True, True, 0.1)
    assert (masks.unmasked_probability, noise.max_strength) == (0.0, 0.8)
    with_concepts = decode({**encode(result.config), "concepts": [{"path": "x"}]}).config
    assert [p for p in problems_of(with_concepts) if p.severity == "error"] == []


def test_the_unmasked_probability_had_an_effect_on_inpainting_models_only() -> None:
    plain = loaded(unmasked_probability=0.5, **MASKED)
    assert plain.config.masks.unmasked_probability == 0.0
    assert [p.path for p in plain.problems if "inpainting" in p.message] == ["masks.unmasked_probability"]
    assert not any("inpainting" in p.message for p in loaded(unmasked_probability=0.1, **MASKED).problems)
    for keys, expected in (({"unmasked_probability": 0.5}, 0.5), ({}, 0.1)):
        inpainting = loaded(model_type="STABLE_DIFFUSION_15_INPAINTING", **MASKED, **keys)
        assert inpainting.config.masks.unmasked_probability == expected


def test_a_z_image_preset_of_onetrainer() -> None:
    """Its De-Turbo preset; the transformer's own file must be on this machine, which the check of a run says."""
    layers = {"layer_filter": "^(?=.*attention)(?!.*refiner).*", "layer_filter_preset": "attn-mlp"}
    file = "https://huggingface.co/ostris/Z-Image-De-Turbo/blob/main/z_image_de_turbo_v1_bf16.safetensors"
    tree = {
        "model_type": "Z_IMAGE",
        "base_model_name": "Tongyi-MAI/Z-Image-Turbo",
        "training_method": "LORA",
        "gradient_checkpointing": "CPU_OFFLOADED",
        "layer_offload_fraction": 0.6,
        "transformer": {"train": True, "weight_dtype": "INT_W8A8", "model_name": file},
        "text_encoder": {"train": False, "weight_dtype": "FLOAT_8"},
        "train_dtype": "BFLOAT_16",
        "timestep_distribution": "LOGIT_NORMAL",
        "quantization": {"layer_filter": "layers", "layer_filter_preset": "blocks"},
        **layers,
        "layer_filter_regex": True,
    }
    loaded = decode(tree)
    assert not [p for p in loaded.problems if p.severity != "info"]
    config = loaded.config
    assert (config.model.family.name, config.part("transformer").file) == ("z_image", file)
    transformer = config.part("transformer")
    assert (transformer.dtype, transformer.checkpointing) == ("int8_w8a8", "block")
    assert (transformer.offload_fraction, transformer.offload_activations) == (0.6, True)
    assert config.part("text_encoder").dtype == "float8"
    assert (config.adapter.layers, config.adapter.layers_regex) == ("custom", True)
    assert config.adapter.custom_layers == layers["layer_filter"], "what OneTrainer trains, whatever the preset's name"


def flux_tree(**keys: Any) -> dict[str, Any]:
    """OneTrainer's preset for a LoRA of FLUX.1 dev."""
    return {
        "model_type": "FLUX_DEV_1",
        "base_model_name": "black-forest-labs/FLUX.1-dev",
        "training_method": "LORA",
        "transformer": {"train": True, "weight_dtype": "NFLOAT_4", "guidance_scale": 1.0, "attention_mask": False},
        "text_encoder": {"train": False, "weight_dtype": "BFLOAT_16"},
        "text_encoder_2": {"train": False, "weight_dtype": "NFLOAT_4"},
        "vae": {"weight_dtype": "FLOAT_32"},
        "dynamic_timestep_shifting": True,
        "timestep_distribution": "LOGIT_NORMAL",
        "layer_filter": "attn,ff.net",
        "layer_filter_preset": "attn-mlp",
        "train_dtype": "BFLOAT_16",
        "output_model_format": "KOHYA_LORA",
        **keys,
    }


@pytest.mark.parametrize(
    ("model_type", "variant"), [("FLUX_DEV_1", "text_to_image"), ("FLUX_FILL_DEV_1", "inpainting")]
)
def test_a_flux_preset_of_onetrainer(model_type: str, variant: str) -> None:
    tree = flux_tree(model_type=model_type, text_encoder_2_sequence_length=512, unmasked_probability=0.3)
    loaded = decode(tree)
    assert not [p for p in loaded.problems if p.severity != "info"]
    config = loaded.config
    assert (config.model.family.name, config.model.variant) == ("flux", variant)
    assert config.model.family.model_dump() == {"name": "flux", "guidance": 1.0, "text_tokens": 512}
    assert config.training.noise.dynamic_shift
    assert config.masks.unmasked_probability == (0.3 if variant == "inpainting" else 0.0)
    assert [config.part(name).dtype for name in ("transformer", "text_encoder_2")] == ["nfloat4", "nfloat4"]
    assert not config.part("text_encoder_2").train
    assert (config.adapter.layers, config.adapter.custom_layers) == ("custom", "attn,ff.net"), "less than ours has"
    assert config.output.format == "kohya"
    assert config.unknown == {"onetrainer": {}}
    assert decode(encode(config)).config == config


def test_a_flux_file_without_the_keys_of_today_has_onetrainers_defaults() -> None:
    tree = flux_tree(transformer={"attention_mask": True})
    del tree["dynamic_timestep_shifting"]
    loaded = decode(tree)
    assert loaded.config.model.family.model_dump() == {"name": "flux", "guidance": 1.0, "text_tokens": 77}
    assert not loaded.config.training.noise.dynamic_shift
    assert ["attention_mask" in p.message for p in loaded.problems if p.severity == "warning"] == [True]


@pytest.mark.parametrize("model_type", ["FLUX_DEV_1", "QWEN", "KREA_2"])
def test_the_dynamic_shift_replaces_the_constant_one(model_type: str) -> None:
    """As in OneTrainer; here the two multiply."""
    result = loaded(model_type=model_type, dynamic_timestep_shifting=True, timestep_shift=3.0)
    noise = result.config.training.noise
    assert (noise.dynamic_shift, noise.shift) == (True, 1.0)
    assert [(p.path, p.severity) for p in result.problems if "timestep_shift" in p.message] == [
        ("training.noise.shift", "info")
    ]
    constant = loaded(model_type=model_type, dynamic_timestep_shifting=False, timestep_shift=3.0).config.training.noise
    assert (constant.dynamic_shift, constant.shift) == (False, 3.0)


def test_a_dynamic_shift_without_a_counterpart_is_named() -> None:
    result = loaded(model_type="Z_IMAGE", dynamic_timestep_shifting=True, timestep_shift=3.0)
    assert result.config.training.noise.shift == 3.0
    assert any("dynamic_timestep_shifting" in text and "Z-Image" in text for text in warnings_of(result))
    assert not warnings_of(loaded(model_type="CHROMA_1", dynamic_timestep_shifting=True))  # nor is it used there


@pytest.mark.parametrize(
    ("keys", "preset"),
    [
        ({"layer_filter_preset": "attn-mlp", "layer_filter": "attentions"}, "attention_mlp"),
        ({"layer_filter_preset": "attn-only", "layer_filter": "attn"}, "attention"),
        ({"layer_filter_preset": "attn-mlp", "layer_filter": "attn,ff.net"}, "custom"),
        ({"layer_filter": "attn2"}, "custom"),
        ({"layer_filter_preset": "attn-mlp"}, "attention_mlp"),
        ({"layer_filter_preset": "full", "layer_filter": ""}, "all"),
    ],
)
def test_the_layers_are_those_that_the_filter_names(keys: dict[str, str], preset: str) -> None:
    """A preset's name stands for a different filter in each model of OneTrainer."""
    result = loaded(__version=11, **keys)
    assert (result.config.adapter.layers, warnings_of(result)) == (preset, [])
    assert result.config.adapter.custom_layers == keys.get("layer_filter", "")


def test_the_usual_device_is_the_one_that_is_found() -> None:
    """OneTrainer writes it into each file; a machine without such a GPU needs no question."""
    devices = [loaded(train_device=name).config.general.train_device for name in ("cuda", "cuda:1", "cpu")]
    assert devices == ["auto", "cuda:1", "cpu"]


def test_a_part_that_stops_after_any_number_of_epochs_never_stops() -> None:
    """Ten thousand epochs and more were the first way to train a part to the end."""
    stops = [loaded(train_unet_epochs=epochs).config.part("unet").stop_after for epochs in (10_000, 100_000, 50)]
    assert [stop.is_never for stop in stops] == [True, True, False]


@pytest.mark.parametrize("model_type", ["FLUX_DEV_1", "QWEN", "HI_DREAM_FULL", "STABLE_CASCADE_1", "PIXART_ALPHA"])
def test_settings_of_the_whole_model_are_those_of_its_own_parts(model_type: str) -> None:
    whole = {"weight_dtype": "BFLOAT_16", "gradient_checkpointing": "CPU_OFFLOADED", "layer_offload_fraction": 0.4}
    parts = loaded(model_type=model_type, **whole).config.unknown.get("onetrainer", {})
    assert not {"decoder_text_encoder", "decoder_vqgan", "text_encoder_4", "transformer"} & parts.keys()
    assert model_type == "STABLE_CASCADE_1" or not parts


def test_the_report_counts_what_only_other_models_have() -> None:
    """A complete file has some thirty such settings, and a user has to read none of them."""
    other = {name: {"train": True, "weight_dtype": "FLOAT_32"} for name in ("prior", "decoder", "effnet_encoder")}
    defaults = {"frames": "25", "vb_loss_strength": 1.0, "async_offloading": True, "sample_video_format": "MP4"}
    more = {"sample_audio_format": "MP3", "text_encoder_3_layer_skip": 0}
    kept = [p.message for p in loaded(**other, **defaults, **more).problems if "kept" in p.message]
    assert kept == ["9 settings of other types of models, or with OneTrainer's defaults, are kept unchanged."]
    (named,) = [p.message for p in loaded(**other, **defaults, **more, telepathy=1).problems if "kept" in p.message]
    assert named.endswith("kept unchanged: telepathy and 9 more.")


@pytest.mark.parametrize("method", ["FINE_TUNE", "LORA", "EMBEDDING"])
@pytest.mark.parametrize("model_type", ["STABLE_DIFFUSION_XL_10_BASE", "FLUX_DEV_1"])
def test_defaults_of_onetrainer_are_not_reported_as_settings_without_effect(model_type: str, method: str) -> None:
    idle = {"text_encoder": {"train": False, "stop_training_after": 30, "stop_training_after_unit": "EPOCH"}}
    file = {"__version": 11, "model_type": model_type, "training_method": method, "train_dtype": "BFLOAT_16", **idle}
    assert not [p for p in problems_of(decode(file).config) if "no effect" in p.message]
    changed = decode({**file, "ema_update_step_interval": 7}).config
    assert [p.path for p in problems_of(changed) if "no effect" in p.message] == ["training.ema.update_every_steps"]
    saved = decode(encode(decode(file).config)).config
    assert not [p for p in problems_of(saved) if "no effect" in p.message], "also after it was saved here"


def test_a_setting_without_effect_is_reported_if_its_value_is_onetrainers_by_chance() -> None:
    own = decode({**encode(Config()), "sampling": {"also_without_ema": True}}).config
    assert [p.path for p in problems_of(own) if "no effect" in p.message] == ["sampling.also_without_ema"]
