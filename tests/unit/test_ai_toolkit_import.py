"""Import ai-toolkit's configs, with a report of what has no counterpart here, and hostile YAML."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from modules.adapters.settings import adapter_layers
from modules.config.codec import LoadedConfig, decode, encode, load_file, save_file
from modules.config.imports.ai_toolkit import is_ai_toolkit, tree_of_ai_toolkit
from modules.config.imports.any_file import load_any, load_any_text
from modules.config.imports.yaml_text import UnreadableYamlError, read_yaml
from modules.config.rules.every_setting import unsupported_settings
from modules.data.dataset import scan_concept
from modules.families.registry import FAMILIES
from modules.system.problem import Problem
from tests.builders.images import draw_folder
from tests.unit.strategies import few, garbage
from trainer.__main__ import main

FIXTURE = Path(__file__).parent / "fixtures" / "ai_toolkit" / "z_image.yaml"
WHOLE: dict[str, Any] = yaml.safe_load(FIXTURE.read_text(encoding="utf-8"))


def process(**sections: Any) -> dict[str, Any]:
    """A config with the given sections of its process; nested keys replace those of a minimal one."""
    minimal = {
        "type": "sd_trainer",
        "model": {"name_or_path": "some/model", "arch": "zimage"},
        "network": {"linear": 4},
    }
    return {"job": "extension", "config": {"name": "x", "process": [{**minimal, **sections}]}}


def imported(raw: dict[str, Any]) -> LoadedConfig:
    notes: list[Problem] = []
    loaded = decode(tree_of_ai_toolkit(raw, notes))
    return LoadedConfig(loaded.config, [*notes, *loaded.problems])


def messages(loaded: LoadedConfig) -> str:
    return " ".join(str(p) for p in loaded.problems)


def test_a_whole_config_means_the_same_here() -> None:
    loaded = load_any(FIXTURE)
    config, training = loaded.config, loaded.config.training
    assert loaded.was_migrated
    assert config.family.name == "z_image"
    assert config.model.base_model == "Tongyi-MAI/Z-Image-Turbo"
    assert config.model.training_adapter == "someone/adapter/v2.safetensors"
    assert (config.adapter.name, config.adapter.rank, config.adapter.alpha) == ("lora", 32, 16.0)
    assert config.adapter.layers == "blocks"
    assert (training.batch_size, training.accumulation_steps, training.learning_rate) == (2, 3, 1e-4)
    assert (training.optimizer.name, training.optimizer.weight_decay, training.optimizer.eps) == (
        "adamw_8bit",
        0.02,
        1e-6,
    )
    assert (training.precision, training.noise.distribution, training.noise.shift) == ("bfloat16", "logit_normal", 1.0)
    assert (training.ema.mode, training.ema.decay) == ("train_device", 0.99)
    denoiser, encoder = config.part("transformer"), config.part("text_encoder")
    assert (denoiser.dtype, denoiser.offload_fraction, denoiser.checkpointing) == ("float8", 0.5, "block")
    assert (encoder.dtype, encoder.offload_fraction) == ("nfloat4", 1.0)
    assert config.output.destination == "output/my_cat_v1.safetensors"
    assert config.output.dtype == "bfloat16"
    assert config.backup.save_every.model_dump() == {"n": 250, "unit": "step"}


@pytest.mark.parametrize(
    ("given", "folders"),
    [
        ({"control_path": "in"}, ["in", "", ""]),
        ({"control_path": ["in", "style"]}, ["in", "style", ""]),
        (
            {"control_path": None, "control_path_1": "in", "control_path_2": "style", "control_path_3": ""},
            ["in", "style", ""],
        ),
    ],
)
def test_control_images_are_reference_images(given: dict[str, Any], folders: list[str]) -> None:
    images = [{"prompt": "x", "ctrl_img_1": "a.png", "ctrl_img_2": "b.png"}, {"prompt": "x", "ctrl_img": "c.png"}]
    loaded = imported(
        process(
            model={"name_or_path": "some/model", "arch": "flux_kontext"},
            datasets=[{"folder_path": "out", **given}],
            sample={"samples": images},
        )
    )
    config, [concept] = loaded.config, loaded.config.concepts
    assert (config.family.name, config.model.variant) == ("flux", "edit")
    image = concept.image
    assert [image.conditioning_folder, image.conditioning_folder_2, image.conditioning_folder_3] == folders
    assert [p.reference_images for p in config.sampling.prompts] == [("a.png", "b.png"), ("c.png",)]
    assert "control" not in json.dumps(config.unknown)


def test_datasets_become_concepts() -> None:
    config = load_any(FIXTURE).config
    cats, more = config.concepts
    assert (cats.path, cats.repeats, cats.caption_extension) == ("data/cats", 2, ".txt")
    assert (cats.image.flip, cats.image.resolution_px) == ("random", ())
    assert config.output.trigger_words == "c4t", "the file would not state it"
    assert (cats.text.trigger_word, cats.text.replacements) == ("c4t", "[trigger] => c4t\n[name] => c4t")
    assert (more.path, more.repeats, more.image.resolution_px) == ("data/more", 1, (768,))
    assert (more.image.mask_source, more.image.masks_folder) == ("folder", "data/masks")
    assert (config.masks.enabled, config.masks.unmasked_weight) == (True, 0.1)
    assert config.data.resolution_px == (512, 768)
    assert config.data.caption_dropout == 0.05
    assert config.data.never_upscale


@pytest.mark.parametrize("with_captions", [0, 1, 2])
def test_a_default_caption_is_that_of_images_without_caption_files(tmp_path: Path, with_captions: int) -> None:
    """Of a folder with some caption files it vanished without a word, and the other images had no caption."""
    draw_folder(tmp_path, sizes=[(8, 8), (8, 8)], captions=["a cat"])
    for number in range(with_captions, 2):
        (tmp_path / f"{number:03d}.txt").unlink()
    loaded = imported(process(datasets=[{"folder_path": str(tmp_path), "default_caption": "a zog"}]))
    [concept] = loaded.config.concepts
    captions = [image.captions for image in scan_concept(concept, tmp_path).images]
    assert captions == [("a cat",)] * with_captions + [("a zog",)] * (2 - with_captions)
    assert "default_caption" not in messages(loaded)


def test_what_the_interface_of_ai_toolkit_writes_always_is_not_reported() -> None:
    """Its defaults were listed as settings that are not supported."""
    loaded = imported(
        process(
            datasets=[{"folder_path": "photos", "network_weight": 1, "default_caption": ""}],
            network={"type": "lora", "linear": 16, "lokr_full_rank": True, "lokr_factor": -1},
            train={
                "diff_output_preservation": False,
                "diff_output_preservation_class": "person",
                "diff_output_preservation_multiplier": 1,
            },
        )
    )
    assert "not supported" not in messages(loaded)


def test_samples_have_their_own_flags_and_settings() -> None:
    sampling = load_any(FIXTURE).config.sampling
    assert sampling.every.model_dump() == {"n": 125, "unit": "step"}
    first, flags, own = sampling.prompts
    assert (first.prompt, first.seed, first.negative_prompt) == ("c4t on a chair", 7, "blurry")
    assert (first.width_px, first.height_px, first.steps, first.guidance) == (1024, 768, 8, 1.0)
    assert (flags.prompt, flags.negative_prompt, flags.seed) == ("a dog", "a cat, a bird", 3)
    assert (flags.width_px, flags.height_px, flags.steps, flags.guidance) == (512, 512, 20, 2.5)
    assert (own.prompt, own.seed, own.steps, own.guidance) == ("a house", 9, 30, 3.0)


def test_what_is_not_supported_is_kept_and_named(tmp_path: Path) -> None:
    loaded = load_any(FIXTURE)
    assert loaded.config.unknown["ai_toolkit"] == {
        "train": {"diff_output_preservation": True},
        "sample": {"samples": [{"network_multiplier": 0.8}]},
    }
    assert loaded.config.model.training_adapter == "someone/adapter/v2.safetensors"
    text = messages(loaded)
    for name in ("train.diff_output_preservation", "sample.samples.network_multiplier", "someone/recovery.safetensors"):
        assert name in text
    assert "images were not found" in text
    assert not [p for p in loaded.problems if p.severity == "error"]
    save_file(loaded.config, tmp_path / "config.json")
    again = load_file(tmp_path / "config.json")
    assert again.config == loaded.config


def test_steps_become_epochs_where_the_images_are_found(tmp_path: Path) -> None:
    draw_folder(tmp_path / "cats", sizes=[(32, 32)] * 6)
    sets = [{"folder_path": str(tmp_path / "cats"), "num_repeats": 2, "resolution": [512, 768]}]
    train = {"steps": 300, "batch_size": 2, "gradient_accumulation": 2}
    loaded = imported(process(datasets=sets, train=train))
    assert loaded.config.training.epochs == 300 * 2 * 2 / 12
    regularization = {"folder_path": str(tmp_path / "cats"), "is_reg": True}
    loaded = imported(process(datasets=[*sets, regularization], train=train))
    assert loaded.config.training.epochs == 300 * 2 * 2 / 24  # half of the steps train them, there and here
    # With the older setting each batch is a step.
    older = {"steps": 300, "batch_size": 2, "gradient_accumulation_steps": 2}
    loaded = imported(process(datasets=sets, train=older, save={"save_every": 100}, sample={"sample_every": 50}))
    assert loaded.config.training.epochs == 300 * 2 / 12
    assert loaded.config.training.accumulation_steps == 2
    assert loaded.config.backup.save_every.n == 50
    assert loaded.config.sampling.every.n == 25


@pytest.mark.parametrize(
    ("model", "family"),
    [
        ({}, "sd"),
        ({"is_v2": True}, "sd"),
        ({"arch": "sd15"}, "sd"),
        ({"is_xl": True}, "sdxl"),
        ({"is_lumina2": True}, "lumina2"),
        ({"arch": "sdxl", "is_v_pred": True}, "sdxl"),
        *(({"arch": arch}, spec.name) for spec in FAMILIES.values() for arch in spec.ai_toolkit),
        *(({"arch": f"{arch}:tag"}, spec.name) for spec in FAMILIES.values() for arch in spec.ai_toolkit[:1]),
    ],
)
def test_the_family_follows_from_arch_or_the_older_flags(model: dict[str, Any], family: str) -> None:
    loaded = imported(process(model={"name_or_path": "a/b", **model}))
    assert loaded.config.family.name == family
    assert not list(unsupported_settings(loaded.config))
    assert "ai_toolkit" not in loaded.config.unknown
    if model.get("is_v_pred"):
        assert loaded.config.model.family.prediction_type == "v_prediction"


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ({"arch": "wan22_14b:t2v"}, "Wan 2.2 (wan22_14b)"),
        ({"arch": "x9"}, "x9"),
    ],
)
def test_a_family_that_is_not_here_is_refused_by_name(model: dict[str, Any], name: str, tmp_path: Path) -> None:
    loaded = imported(process(model={"name_or_path": "a/b", **model}))
    (warning,) = [p for p in loaded.problems if p.path == "model.family"]
    assert name in warning.message
    assert all(spec.label in str(warning) for spec in FAMILIES.values())
    save_file(loaded.config, tmp_path / "config.json")
    (error,) = unsupported_settings(load_file(tmp_path / "config.json").config)
    assert (error.severity, error.path) == ("error", "model.family")
    assert name in error.message
    assert all(spec.label in error.advice for spec in FAMILIES.values())


@pytest.mark.parametrize(
    ("kind", "distribution", "shift"),
    [
        ("sigmoid", "logit_normal", 1.0),
        ("linear", "uniform", 1.0),
        ("weighted", "uniform", 1.0),
        ("shift", "uniform", 3.0),
    ],
)
def test_timestep_types_of_a_flow_model(kind: str, distribution: str, shift: float) -> None:
    loaded = imported(process(train={"timestep_type": kind, "noise_scheduler": "flowmatch"}))
    noise = loaded.config.training.noise
    assert (noise.distribution, noise.shift) == (distribution, shift)
    assert ("fixed table" in messages(loaded)) == (kind == "weighted")


def test_an_unknown_timestep_type_is_named_and_kept() -> None:
    loaded = imported(process(train={"timestep_type": "one_step"}))
    assert loaded.config.training.noise.distribution == "logit_normal"
    assert "one_step" in messages(loaded)
    assert loaded.config.unknown["ai_toolkit"] == {"train": {"timestep_type": "one_step"}}


@pytest.mark.parametrize(
    ("network", "wanted"),
    [
        ({"type": "lora", "rank": 8}, {"name": "lora", "rank": 8, "alpha": 1.0}),
        ({"type": "lora", "linear": 8, "linear_alpha": 4, "dropout": 0.1}, {"rank": 8, "alpha": 4.0, "dropout": 0.1}),
        ({"type": "lokr", "linear": 8, "linear_alpha": 8, "lokr_factor": 4}, {"name": "lokr", "rank": 8, "factor": 4}),
        ({"type": "lokr", "lokr_full_rank": True, "lokr_factor": 8}, {"full_matrix": True, "factor": 8}),
        ({"type": "dora", "linear": 8}, {"name": "lora", "decompose": True}),
    ],
)
def test_networks(network: dict[str, Any], wanted: dict[str, Any]) -> None:
    loaded = imported(process(network=network))
    assert {key: getattr(loaded.config.adapter, key) for key in wanted} == wanted
    assert "ai_toolkit" not in loaded.config.unknown


def test_what_should_be_a_number_is_named() -> None:
    loaded = imported(process(train={"steps": "many", "lr": [1], "batch_size": "4"}, network={"linear": {"a": 1}}))
    warnings = [p.message for p in loaded.problems if p.severity == "warning" and "is not a number" in p.message]
    assert [text.partition(" ")[0] for text in warnings] == ["steps", "lr", "linear"]
    assert loaded.config.training.batch_size == 4


def test_convolutions_have_a_rank_only_in_models_that_have_them() -> None:
    """The interface of ai-toolkit writes it into the config of any model."""
    network = {"type": "lora", "linear": 8, "conv": 4}
    flow, unet = (
        imported(process(network=network, model={"arch": arch})).config.adapter for arch in ("zimage", "sdxl")
    )
    assert (flow.layers, flow.conv_rank) == (FAMILIES["z_image"].denoiser.model.layers_elsewhere, None)
    assert (unet.layers, unet.conv_rank, unet.conv_alpha) == ("all", 4, 4.0)


def test_layers_by_parts_of_their_names() -> None:
    arguments = {"only_if_contains": ["transformer.layers.1.", "to_q"], "ignore_if_contains": ["adaLN"]}
    adapter = imported(process(network={"linear": 4, "network_kwargs": arguments})).config.adapter
    layers = FAMILIES["z_image"].denoiser.model.layers
    chosen = adapter_layers(adapter, layers)
    names = (
        "layers.1.attention.to_k",
        "layers.10.feed_forward.w1",
        "layers.10.attention.to_q",
        "layers.1.adaLN_modulation.0",
    )
    assert [chosen.takes(name) for name in names] == [True, False, True, False]


def test_without_a_network_the_model_is_fine_tuned() -> None:
    raw = process()
    del raw["config"]["process"][0]["network"]
    assert imported(raw).config.training.trains == "full"


@pytest.mark.parametrize(
    ("train", "name", "rate"),
    [
        ({"optimizer": "prodigy", "lr": 1e-4}, "prodigy", 1.0),
        ({"optimizer": "prodigy", "lr": 0.5}, "prodigy", 0.5),
        ({"optimizer": "adafactor", "lr": 1e-3}, "adafactor", 1e-3),
        ({"optimizer": "automagic", "lr": 1e-6}, "adamw", 1e-6),
        ({}, "adamw", 1e-6),
    ],
)
def test_optimizers_have_the_rates_and_defaults_of_theirs(train: dict[str, Any], name: str, rate: float) -> None:
    loaded = imported(process(train=train))
    optimizer = loaded.config.training.optimizer
    assert (optimizer.name, loaded.config.training.learning_rate) == (name, rate)
    assert getattr(optimizer, "relative_step", False) is False
    assert ("automagic" in messages(loaded)) == (train.get("optimizer") == "automagic")


def test_other_jobs_and_further_processes_are_named() -> None:
    raw = process()
    raw["config"]["process"].append({"type": "sd_trainer"})
    raw["config"]["process"][0]["type"] = "concept_replacer"
    assert "'concept_replacer'" in messages(imported(raw))
    assert "2 processes" in messages(imported(raw))


@pytest.mark.parametrize("kind", ["concept_slider", "slider"])
def test_a_slider_is_refused_in_one_sentence(kind: str, tmp_path: Path) -> None:
    """It has no images: the run was refused for that."""
    (tmp_path / "job.json").write_text(json.dumps(process(type=kind)))
    [problem] = load_any(tmp_path / "job.json").problems
    assert (problem.severity, problem.path) == ("error", "")
    assert f"job.json trains a slider of ai-toolkit ('{kind}'), which Darkroom does not train." in problem.message


def test_all_saves_are_kept_and_that_is_said() -> None:
    [note] = [p for p in load_any(FIXTURE).problems if p.path == "backup.save_every"]
    assert (note.severity, "the newest 4 saves" in note.message) == ("info", True)


def test_a_config_in_json_is_read_too(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text(json.dumps(WHOLE))
    assert load_any(tmp_path / "job.json").config == load_any(FIXTURE).config
    for text in (json.dumps(WHOLE), FIXTURE.read_text(encoding="utf-8")):
        assert load_any_text(text, name="Pasted config").config == load_any(FIXTURE).config
    assert not is_ai_toolkit(encode(load_any(FIXTURE).config))


def test_the_command_line_accepts_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(FIXTURE), "--json"]) == 2  # its images are missing
    report = json.loads(capsys.readouterr().out)
    assert any("config of ai-toolkit" in p["message"] for p in report["load"])


# -- files that may come from anybody ---------------------------------------------------------------------------------


def _nested_aliases(depth: int) -> str:
    return "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, depth))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (_nested_aliases(40), "values"),
        ("a0: &a0 {k: 1}\n" + "".join(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}\n" for n in range(1, 40)), "values"),
        ("a: &a [*a]", "deep"),
        ("[" * 500 + "]" * 500, "deep"),
        ("- " * 5_000 + "x", "deep"),
        ("a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 100)), "deep"),
        ("x" * 500_000, "400,000"),
        ("!!python/object/apply:os.system ['true']", "not a YAML file"),
        ("a: [1, 2", "not a YAML file"),
        ("a: 'b", "not a YAML file"),
        ("? {a: 1}\n: b", "not a YAML file"),
        ("a: " + "9" * 5_000, "not a YAML file"),
        ("a: \x00", "not a YAML file"),
        ("job: 1\n---\njob: 2", "not a YAML file"),
    ],
)
def test_hostile_yaml_is_one_sentence(text: str, reason: str, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(text)
    loaded = load_any(file)
    (problem,) = loaded.problems
    assert problem.severity == "error"
    assert reason in problem.message
    assert str(file) in problem.message


def test_values_of_yaml_are_those_of_json() -> None:
    text = "a: 2026-01-01\nb: 1e-4\nc: 0.5\nd: yes\ne: ~\n1: {x: .inf}\nf: !!set {q}\ng: !!binary aGk="
    assert json.loads(json.dumps(read_yaml(text))) == {
        **{"a": "2026-01-01", "b": "1e-4", "c": 0.5, "d": True, "e": None, "1": {"x": float("inf")}},
        **{"f": "{'q'}", "g": "b'hi'"},
    }
    assert read_yaml("") is None
    with pytest.raises(UnreadableYamlError):
        read_yaml("a: b: c")


def test_other_yaml_is_not_taken_for_theirs(tmp_path: Path) -> None:
    for text in ("a: 1", "[1]", "", "job: extension", "job: extension\nconfig: {process: 3}"):
        (tmp_path / "other.yml").write_text(text)
        assert "contains no known settings" in messages(load_any(tmp_path / "other.yml"))


def _paths(tree: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [path for key, value in items for path in ((*above, key), *_paths(value, (*above, key)))]


_PATHS = _paths(WHOLE["config"]["process"][0])


@few
@given(st.lists(st.tuples(st.sampled_from(_PATHS), garbage), min_size=1, max_size=4))
def test_any_values_at_all_give_a_valid_config(changes: list[tuple[tuple[Any, ...], Any]]) -> None:
    raw = copy.deepcopy(WHOLE)
    for path, value in changes:
        holder = raw["config"]["process"][0]
        for key in path[:-1]:
            try:
                holder = holder[key]
            except (KeyError, IndexError, TypeError):
                break
        else:
            if isinstance(holder, dict) or (isinstance(holder, list) and path[-1] < len(holder)):
                holder[path[-1]] = value
    loaded = imported(raw)
    assert decode(json.loads(json.dumps(encode(loaded.config)))).config == loaded.config
