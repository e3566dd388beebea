"""Import kohya's configs, and the training settings in its LoRA files, with a report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file as save_tensors

from modules.config.codec import LoadedConfig, decode, encode, load_file, save_file
from modules.config.imports.ai_toolkit import tree_of_ai_toolkit
from modules.config.imports.any_file import is_kohya, load_any
from modules.config.imports.kohya_settings import tree_of_kohya
from modules.config.imports.kohya_values import arguments_of, sides_of
from modules.config.imports.lora_metadata import kohya_args
from modules.config.schema import Config
from modules.data.dataset import scan_concept
from modules.optim.schedule_registry import SCHEDULES
from modules.system.problem import Problem
from tests.builders.images import draw_folder
from tests.unit.strategies import few, garbage
from trainer.__main__ import main

FIXTURES = Path(__file__).parent / "fixtures" / "kohya"
METADATA = {
    "ss_base_model_version": "sdxl_base_v1-0",
    "ss_batch_size_per_device": "3",
    "ss_caption_dropout_rate": "0.0",
    "ss_clip_skip": "None",
    "ss_dataset_dirs": '{"5_sks dog": {"n_repeats": 5, "img_count": 12}}',
    "ss_epoch": "8",
    "ss_flip_aug": "False",
    "ss_gradient_accumulation_steps": "1",
    "ss_gradient_checkpointing": "True",
    "ss_learning_rate": "0.0004",
    "ss_lr_scheduler": "constant_with_warmup",
    "ss_lr_warmup_steps": "20",
    "ss_max_train_steps": "1600",
    "ss_min_snr_gamma": "None",
    "ss_mixed_precision": "bf16",
    "ss_network_alpha": "16.0",
    "ss_network_dim": "32",
    "ss_network_module": "networks.lora",
    "ss_num_epochs": "8",
    "ss_num_train_images": "60",
    "ss_optimizer": "transformers.optimization.Adafactor(scale_parameter=False,relative_step=False,warmup_init=False)",
    "ss_output_name": "sks",
    "ss_resolution": "(1024, 1024)",
    "ss_sd_model_name": "sd_xl_base_1.0.safetensors",
    "ss_seed": "42",
    "ss_tag_frequency": "{}",
    "ss_text_encoder_lr": "0.0",
    "ss_unet_lr": "0.0004",
    "ss_v2": "False",
    "sshs_model_hash": "abc",
    "modelspec.title": "sks",
}


def messages(loaded: LoadedConfig) -> str:
    return " ".join(str(p) for p in loaded.problems)


def test_a_config_of_kohya_ss_means_the_same_here() -> None:
    loaded = load_any(FIXTURES / "gui_lora.json")
    config, training = loaded.config, loaded.config.training
    assert loaded.was_migrated
    assert (config.model.family.name, config.model.base_model, config.model.family.clip_skip) == (
        "sd",
        "/models/v1-5.safetensors",
        1,
    )
    assert "kohya's clip skip 2 is 1 here" in messages(loaded)
    lora = config.adapter
    assert (lora.rank, lora.alpha, lora.dropout, lora.layers) == (32, 8, 0.1, "attention_mlp")
    assert (training.trains, training.epochs, training.batch_size, training.accumulation_steps) == ("adapter", 12, 4, 2)
    assert (training.learning_rate, config.part("unet").learning_rate) == (1e-4, 2e-4)
    encoder = config.part("text_encoder")
    assert (encoder.learning_rate, encoder.stop_after.n, encoder.checkpointing) == (5e-5, 6, "block")
    assert training.optimizer.model_dump().items() >= {"name": "adamw_8bit", "beta2": 0.99, "weight_decay": 0.1}.items()
    schedule = training.schedule.model_dump()
    assert schedule.items() >= {"name": "cosine_with_hard_restarts", "cycles": 3, "warmup_share": 0.1}.items()
    assert (training.precision, training.loss.weighting, training.loss.gamma) == ("bfloat16", "min_snr", 5)
    assert training.noise.offset_weight == 0.05
    assert (config.data.resolution_px, config.data.aspect_ratio_bucketing, config.data.caption_dropout) == (
        (768,),
        True,
        0.05,
    )
    assert (config.output.destination, config.output.dtype) == ("/out/my_dog.safetensors", "float16")
    assert config.general.seed == 1234
    first, second = config.sampling.prompts
    assert (first.prompt, first.negative_prompt) == ("a dog in the snow", "blurry, bad")
    assert (first.width_px, first.height_px, first.seed, first.guidance, first.steps) == (512, 768, 7, 6.5, 28)
    assert (second.prompt, second.sampler) == ("a cat", "euler_a")
    assert str(config.sampling.every) == "every 2 epochs"
    assert str(config.backup.save_every) == "every 3 epochs"
    (concept,) = config.concepts
    assert (concept.path, concept.image.flip, concept.text.shuffle_tags, concept.text.keep_tags_count) == (
        "/pictures/dog",
        "random",
        True,
        1,
    )


@pytest.mark.parametrize(
    ("given", "is_compiled", "notes"),
    [
        ({"torch_compile": True}, True, []),
        ({"dynamo_backend": "inductor"}, True, []),
        ({"dynamo_backend": "no", "torch_compile": False, "sdpa": True}, False, []),
        ({"xformers": True}, False, ["xformers is not used here"]),
        ({"xformers": "mem_eff_attn"}, False, ["mem_eff_attn is not used here"]),
        ({"mem_eff_attn": True, "xformers": "none"}, False, ["mem_eff_attn is not used here"]),
        ({"xformers": "sdpa"}, False, []),
    ],
)
def test_compiling_and_attention_are_converted(given: dict[str, Any], is_compiled: bool, notes: list[str]) -> None:
    problems: list[Problem] = []
    tree = tree_of_kohya({"network_dim": 4, **given}, problems)
    assert (tree.get("model", {}).get("compile") == "on") is is_compiled
    assert "attention" not in tree.get("training", {})
    assert "unknown" not in tree
    found = [p.message for p in problems if p.path == "training.attention"]
    assert len(found) == len(notes)
    assert all(note in message for note, message in zip(notes, found, strict=True))


def test_unsupported_settings_are_kept_and_named() -> None:
    loaded = load_any(FIXTURES / "gui_lora.json")
    assert loaded.config.unknown["kohya"] == {"color_aug": True}
    assert "color_aug" in messages(loaded)
    assert "is a kohya config" in messages(loaded)


def test_a_config_of_sd_scripts_with_sections_and_arguments() -> None:
    loaded = load_any(FIXTURES / "scripts.toml")
    config = loaded.config
    assert (config.model.family.name, config.model.family.prediction_type, config.model.family.zero_terminal_snr) == (
        "sdxl",
        "v_prediction",
        "on",
    )
    assert (config.adapter.rank, config.adapter.alpha, config.adapter.layers) == (16, 4, "all")
    assert (config.adapter.conv_rank, config.adapter.conv_alpha) == (8, 1)
    assert config.part("unet").train
    assert not config.part("text_encoder").train
    assert not config.part("text_encoder_2").train
    optimizer = config.training.optimizer.model_dump()
    assert optimizer.items() >= {"name": "prodigy", "d_coef": 0.5, "decouple": True, "beta2": 0.99}.items()
    assert config.training.schedule.model_dump()["warmup_steps"] == 100
    assert config.data.resolution_px == (1024,)


def test_sdxl_is_known_by_the_base_model(tmp_path: Path) -> None:
    """sd-scripts has a script of its own for SDXL, whose settings do not state it: they were read for SD 1.5."""
    for name in ("mine_xl", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model_index.json").write_text('{"_class_name": "StableDiffusionPipeline"}')
    (tmp_path / "other" / "model_index.json").write_text('{"_class_name": "StableDiffusionXLPipeline"}')
    bases = ("stabilityai/stable-diffusion-xl-base-1.0", "D:\\xl\\v1-5.safetensors", str(tmp_path / "mine_xl"),
             str(tmp_path / "other"), "")  # fmt: skip
    given = [{"network_dim": 4, "pretrained_model_name_or_path": base} for base in bases]
    given.append({**given[0], "sdxl": False})
    families = [tree_of_kohya(settings, [])["model"]["family"]["name"] for settings in given]
    assert families == ["sdxl", "sd", "sd", "sdxl", "sd", "sd"]


def test_the_clip_skip_of_sdxl_is_not_used() -> None:
    """sd-scripts warns that it does nothing there; here a layer more was skipped."""
    notes: list[Problem] = []
    tree = tree_of_kohya({"network_dim": 4, "sdxl": True, "clip_skip": 2}, notes)
    assert decode(tree).config.model.family.clip_skip == 0
    assert "clip_skip = 2 has no effect" in " ".join(p.message for p in notes)


def test_a_dataset_config_gives_concepts() -> None:
    config = load_any(FIXTURES / "dataset.toml").config
    assert [(c.path, c.repeats) for c in config.concepts] == [("/pictures/hoge", 10), ("/pictures/reg", 1)]
    assert [c.kind for c in config.concepts] == ["training", "regularization"]
    assert (config.data.resolution_px, config.training.batch_size) == ((512,), 4)
    assert config.data.aspect_ratio_bucketing


def test_caption_settings_are_converted() -> None:
    captions = {
        "shuffle_caption": "true",
        "keep_tokens": 2,
        "keep_tokens_separator": "|||",
        "secondary_separator": ";;;",
        "caption_separator": ";",
        "caption_prefix": "photo of",
        "caption_suffix": "at night",
        "caption_tag_dropout_rate": 0.2,
        "enable_wildcard": True,
        "caption_extension": ".caption",
        "weighted_captions": True,
    }
    notes: list[Problem] = []
    loaded = decode(tree_of_kohya({"train_data_dir": "/none", **captions}, notes))
    (concept,) = loaded.config.concepts
    assert concept.caption_extension == ".caption"
    assert loaded.config.model.family.prompt_weighting
    text = concept.text
    assert (text.shuffle_tags, text.keep_tags_count, text.keep_tags_separator) == (True, 2, "|||")
    assert (text.tag_group_separator, text.tag_delimiter) == (";;;", ";")
    assert (text.prefix, text.suffix, text.wildcards, text.choice) == ("photo of", "at night", True, "random")
    assert (text.tag_dropout, text.tag_dropout_mode, text.tag_dropout_probability) == (True, "random", 0.2)
    assert "kohya" not in loaded.config.unknown


def test_a_subset_has_its_own_caption_settings() -> None:
    subsets = [{"image_dir": "/a", "keep_tokens": 3, "shuffle_caption": False}, {"image_dir": "/b"}]
    given = {"general": {"shuffle_caption": True, "keep_tokens": 1}, "datasets": [{"subsets": subsets}]}
    first, second = decode(tree_of_kohya(given, [])).config.concepts
    assert (first.text.shuffle_tags, second.text.shuffle_tags, second.text.keep_tags_count) == (False, True, 1)
    assert {first.text.choice, second.text.choice} == {"first"}  # kohya reads one line


def test_what_a_dataset_config_sets_for_all_images_is_converted_or_named() -> None:
    """Wherever it is: in general, in a dataset or in a subset."""
    subsets = [{"image_dir": "/a", "caption_dropout_rate": 0.2, "color_aug": True}, {"image_dir": "/b"}]
    sets = [{"bucket_no_upscale": True, "bucket_reso_steps": 32, "subsets": subsets}]
    notes: list[Problem] = []
    tree = tree_of_kohya({"general": {"caption_dropout_rate": 0.1, "flip_aug": True}, "datasets": sets}, notes)
    data = decode(tree).config.data
    assert (data.never_upscale, data.bucket_step_px, data.caption_dropout) == (True, 32, 0.2)
    assert [p.severity for p in notes if "caption dropout rates" in p.message] == ["warning"]
    assert tree["unknown"] == {"kohya": {"datasets.color_aug": True}}
    assert any("datasets.color_aug" in p.message for p in notes)
    run = {"caption_dropout_rate": 0.3, "bucket_no_upscale": True, "datasets": sets}
    assert decode(tree_of_kohya(run, [])).config.data.caption_dropout == 0.3, "the run's own has precedence"


def test_dates_of_toml_are_kept_as_texts(tmp_path: Path) -> None:
    """JSON has no dates: a config that kept one as it was could not be saved."""
    times = "wandb_date = 1979-05-27\nsome_time = 07:30:00\n"
    (tmp_path / "run.toml").write_text(f'network_module = "networks.lora"\nnetwork_dim = 4\n{times}')
    config = load_any(tmp_path / "run.toml").config
    assert config.unknown["kohya"] == {"wandb_date": "1979-05-27", "some_time": "07:30:00"}
    save_file(config, tmp_path / "ours.json")
    assert load_file(tmp_path / "ours.json").config == config


def test_defaults_that_every_complete_file_has_are_not_reported() -> None:
    defaults = {"unit": 1, "train_on_input": True, "token_warmup_min": 1, "initial_epoch": 1, "sdxl_no_half_vae": True}
    assert "unknown" not in tree_of_kohya(dict(defaults), [])
    changed = tree_of_kohya({**defaults, "initial_epoch": 5}, [])
    assert changed["unknown"] == {"kohya": {"initial_epoch": 5}}


def test_masks_are_converted() -> None:
    """Of sd-scripts' two kinds, alpha_mask works on its own, and mask images need masked_loss."""
    subsets = [{"image_dir": "/a", "conditioning_data_dir": "/m", "alpha_mask": True}, {"image_dir": "/b"}]
    notes: list[Problem] = []
    config = decode(tree_of_kohya({"masked_loss": True, "datasets": [{"subsets": subsets}]}, notes)).config
    assert (config.masks.enabled, config.masks.unmasked_weight) == (True, 0.0)
    assert [(c.image.mask_source, c.image.masks_folder) for c in config.concepts] == [("folder", "/m"), ("file", "")]
    assert ("kohya" in config.unknown, notes) == (False, [])
    without = decode(tree_of_kohya({"datasets": [{"subsets": subsets}]}, [])).config
    assert not without.masks.enabled  # the folder is used as in a dataset of a ControlNet
    for args in ({"train_data_dir": "/a", "alpha_mask": "true"},
                 {"datasets": [{"alpha_mask": True, "subsets": [{"image_dir": "/a"}]}]}):  # fmt: skip
        config = decode(tree_of_kohya(args, [])).config
        assert (config.masks.enabled, config.concepts[0].image.mask_source) == (True, "alpha")
        assert "kohya" not in config.unknown


def test_masked_loss_without_masks_is_reported() -> None:
    notes: list[Problem] = []
    config = decode(tree_of_kohya({"masked_loss": True, "train_data_dir": "/a"}, notes)).config
    assert not config.masks.enabled
    assert [(p.path, p.severity) for p in notes if "masked_loss" in p.message] == [("masks.enabled", "warning")]


def test_any_content_of_a_dataset_config_is_read() -> None:
    """A number of subsets used to raise, and a set without a folder gave its weight to the one before it."""
    subsets = [{"image_dir": "/a"}, {"is_reg": True, "num_repeats": 2}, {"image_dir": "/b", "is_reg": True}, 7]
    tree = tree_of_kohya({"prior_loss_weight": 0.5, "datasets": [{"subsets": 5}, {"subsets": subsets}, 3]}, [])
    assert [(c["path"], c.get("loss_weight")) for c in tree["concepts"]] == [("/a", None), ("/b", 0.5)]


datasets = st.lists(
    st.fixed_dictionaries({}, optional={"subsets": garbage | st.lists(st.dictionaries(st.just("image_dir"), garbage))})
)


@few
@given(st.fixed_dictionaries({"datasets": datasets | garbage}, optional={"general": garbage, "dataset_dirs": garbage}))
def test_any_datasets_at_all_give_a_valid_config(values: dict[str, Any]) -> None:
    decode(tree_of_kohya(values, []))


def test_folders_with_repeats_in_their_names_become_concepts(tmp_path: Path) -> None:
    for name in ("10_sks dog", "2_dog", "notes"):
        (tmp_path / name).mkdir()
    tree = tree_of_kohya({"train_data_dir": str(tmp_path), "network_dim": 4, "unet_lr": 1e-4}, [])
    assert [(c["name"], c["repeats"]) for c in tree["concepts"]] == [("sks dog", 10), ("dog", 2)]
    assert tree["concepts"][0]["path"] == str(tmp_path / "10_sks dog")


def test_regularization_folders_become_regularization_concepts(tmp_path: Path) -> None:
    for name in ("train/10_sks dog", "reg/1_dog"):
        (tmp_path / name).mkdir(parents=True)
    folders = {"train_data_dir": str(tmp_path / "train"), "reg_data_dir": str(tmp_path / "reg")}
    tree = tree_of_kohya({**folders, "prior_loss_weight": 0.3, "network_dim": 4}, [])
    assert [(c.get("kind"), c["loss_weight"], c["repeats"]) for c in tree["concepts"]] == [
        (None, 1.0, 10),
        ("regularization", 0.3, 1),
    ]


@pytest.mark.parametrize(
    ("given", "epochs"),
    [
        ({"max_train_steps": 60}, 8),  # 15 uses an epoch, in batches of 2
        ({"max_train_steps": 60, "epoch": 1, "max_train_epochs": 0}, 8),  # kohya_ss: steps count more than its field
        ({"max_train_steps": 60, "max_train_epochs": 3}, 3),
        ({"max_train_steps": 0, "epoch": 3}, 3),
        ({"max_train_steps": 60, "gradient_accumulation_steps": 2}, 16),
        ({"max_train_steps": 60, "reg_data_dir": "reg"}, 4),  # as many regularization images as others
        ({"max_train_steps": 60, "reg_data_dir": "none"}, 8),
    ],
)
def test_steps_become_epochs_of_the_images(tmp_path: Path, given: dict[str, Any], epochs: int) -> None:
    draw_folder(tmp_path / "train" / "5_zog", sizes=[(8, 8)] * 3)
    draw_folder(tmp_path / "reg" / "1_shape", sizes=[(8, 8)])
    folders = {key: str(tmp_path / value) for key, value in given.items() if key == "reg_data_dir"}
    files = {"train_data_dir": str(tmp_path / "train"), "network_dim": 4, "train_batch_size": 2}
    config = decode(tree_of_kohya({**files, **given, **folders}, [])).config
    assert config.training.epochs == epochs


def test_the_datasets_are_read_from_the_file_that_is_named(tmp_path: Path) -> None:
    (tmp_path / "sets.toml").write_text('[[datasets]]\nimage_directory = "/cats"\nnum_repeats = 3\nbatch_size = 2\n')
    settings = 'dit = "a.safetensors"\nnetwork_module = "networks.lora_qwen_image"\nnetwork_dim = 4\n'
    path = tmp_path / "train.toml"
    for named in ("sets.toml", "C:/elsewhere/sets.toml"):
        path.write_text(f'{settings}dataset_config = "{named}"\n')
        loaded = load_any(path)
        assert [(concept.path, concept.repeats) for concept in loaded.config.concepts] == [("/cats", 3)]
        assert loaded.config.training.batch_size == 2
        assert not [p for p in loaded.problems if p.severity == "warning"]
    path.write_text(f'{settings}dataset_config = "lost.toml"\n')
    assert [str(p) for p in load_any(path).problems if p.path == "concepts"] == [
        "concepts: The dataset config 'lost.toml' was not found. "
        "Put it next to train.toml, or add the folders on the Concepts page."
    ]
    (tmp_path / "sets.toml").write_text("[general]\nresolution = 512\n")
    (tmp_path / "broken.toml").write_text("[")
    for named, reason in (
        ("sets.toml", "contains no datasets"),
        ("broken.toml", "cannot be read"),
        ("x" * 5000, "was not found"),  # longer than names of files may be, which raised an error
    ):
        path.write_text(f'{settings}dataset_config = "{named}"\n')
        [problem] = (p for p in load_any(path).problems if p.path == "concepts")
        assert problem.message.endswith(f" {reason}.")


@pytest.mark.parametrize(
    ("name", "content", "program"),
    [
        ("a.json", '{"--model_family": "flux", "--train_batch_size": 1, "--mixed_precision": "bf16"}', "SimpleTuner"),
        ("a.json", '{"data_backend_config": "x.json", "lr_scheduler": "x", "train_batch_size": 1}', "SimpleTuner"),
        ("a.toml", 'model_family = "flux"\nlr_scheduler = "x"\ntrain_batch_size = 1', "SimpleTuner"),
        ("a.toml", 'micro_batch_size_per_gpu = 1\n[model]\ntype = "flux"', "diffusion-pipe"),
    ],
)
def test_configs_of_other_trainers_are_refused_by_name(tmp_path: Path, name: str, content: str, program: str) -> None:
    """SimpleTuner's share names with kohya's, and were read as settings of Stable Diffusion 1.5."""
    path = tmp_path / name
    path.write_text(content)
    loaded = load_any(path)
    assert loaded.config == Config()
    assert [(p.path, p.severity, p.message) for p in loaded.problems] == [
        ("", "error", f"{name} is a config of {program}, which is not imported.")
    ]


def test_class_tokens_are_the_captions_of_images_without_caption_files(tmp_path: Path) -> None:
    """The way of DreamBooth: kohya trains such images with the name of their folder."""
    draw_folder(tmp_path / "10_sks dog", sizes=[(8, 8), (8, 8)], captions=["a dog"])
    (tmp_path / "10_sks dog" / "000.txt").unlink()
    subset = {"image_dir": str(tmp_path / "10_sks dog"), "class_tokens": "sks dog"}
    for tree in ({"train_data_dir": str(tmp_path), "network_dim": 4}, {"datasets": [{"subsets": [subset]}]}):
        [concept] = decode(tree_of_kohya(tree, [])).config.concepts
        scan = scan_concept(concept, Path(concept.path))
        assert [(image.file_name, image.captions) for image in scan.images] == [
            ("000.png", ("sks dog",)),
            ("001.png", ("a dog",)),
        ]


def test_metadata_files_become_the_source_of_captions() -> None:
    subsets = [{"image_dir": "/a", "metadata_file": "/m.json", "num_repeats": 3, "flip_aug": True},
               {"metadata_file": "/sets/b/meta.json"}]  # fmt: skip
    config = decode(tree_of_kohya({"datasets": [{"subsets": subsets}]}, [])).config
    assert [(c.path, c.caption_source, c.metadata_file, c.repeats, c.image.flip) for c in config.concepts] == [
        ("/a", "metadata", "/m.json", 3, "random"),
        ("/sets/b", "metadata", "/sets/b/meta.json", 1, "off"),
    ]
    tuned = decode(tree_of_kohya({"train_data_dir": "/a", "in_json": "/m.json", "dataset_repeats": 2}, [])).config
    assert [(c.path, c.caption_source, c.metadata_file, c.repeats) for c in tuned.concepts] == [
        ("/a", "metadata", "/m.json", 2)
    ]


def lora_file(folder: Path, metadata: dict[str, str]) -> Path:
    path = folder / "a.safetensors"
    save_tensors({"lora_unet_x.alpha": torch.tensor(1.0)}, path, metadata)
    return path


def test_a_kohya_lora_contains_its_training_settings(tmp_path: Path) -> None:
    loaded = load_any(lora_file(tmp_path, METADATA))
    config, training = loaded.config, loaded.config.training
    assert config.model.family.name == "sdxl"
    assert config.model.base_model == "sd_xl_base_1.0.safetensors"
    assert (config.adapter.rank, config.adapter.alpha) == (32, 16)
    assert (training.epochs, training.batch_size, training.learning_rate) == (8, 3, 4e-4)
    assert training.optimizer.name == "adafactor"
    assert training.schedule.model_dump().items() >= {"name": "constant", "warmup_steps": 20}.items()
    assert config.data.resolution_px == (1024,)
    assert not config.part("text_encoder").train  # its rate was 0
    assert config.part("unet").checkpointing == "block"
    assert [(c.name, c.repeats, c.path) for c in config.concepts] == [("sks dog", 5, "")]
    assert "kohya" not in config.unknown
    assert "read from the metadata of" in messages(loaded)


def test_our_own_and_onetrainers_lora_contain_a_whole_config(tmp_path: Path) -> None:
    ours = decode({"darkroom_version": 7, "training": {"epochs": 77}}).config
    loaded = load_any(lora_file(tmp_path, {"darkroom_config": json.dumps(encode(ours))}))
    assert loaded.config == ours
    theirs = {"__version": 11, "epochs": 55, "training_method": "LORA"}
    assert load_any(lora_file(tmp_path, {"ot_config": json.dumps(theirs)})).config.training.epochs == 55


def test_a_lora_of_ai_toolkit_names_the_file_with_its_settings(tmp_path: Path) -> None:
    """Its metadata name the model as kohya's do, whose defaults it was not trained with."""
    metadata = {"software": '{"name": "ai-toolkit"}', "ss_base_model_version": "flux1", "ss_output_name": "cat"}
    (error,) = load_any(lora_file(tmp_path, metadata)).problems
    assert (error.severity, "config.yaml" in error.advice) == ("error", True)


def test_what_should_be_a_number_is_named() -> None:
    notes: list[Problem] = []
    tree_of_kohya(
        {"network_module": "networks.lora", "network_dim": "big", "seed": [1], "learning_rate": "1e-4"}, notes
    )
    named = [note.message.partition(" ")[0] for note in notes if "is not a number" in note.message]
    assert sorted(named) == ["network_dim", "seed"]


def test_a_file_without_settings_is_an_error(tmp_path: Path) -> None:
    (error,) = load_any(lora_file(tmp_path, {"format": "pt"})).problems
    assert error.severity == "error"
    assert "contains no training settings" in error.message


@pytest.mark.parametrize("suffix", [".json", ".ckpt", ".toml", ".yaml"])
def test_a_model_that_is_given_as_a_config_is_not_read_whole(suffix: str, tmp_path: Path) -> None:
    """Gigabytes were read to find that the file is no text."""
    path = tmp_path / f"model{suffix}"
    with path.open("wb") as file:
        file.truncate(2**33)
    (error,) = load_any(path).problems
    assert error.severity == "error"
    assert "larger than" in error.message


@pytest.mark.parametrize("name", ["a", "../../a", "..\\..\\a", "C:\\x\\a", "/etc/a", "../..", "a/..", None])
def test_a_name_leads_out_of_no_folder(name: str | None) -> None:
    """A config of a stranger chooses the name of the result, and of no folder above the one that it states."""
    notes: list[Problem] = []
    tree = tree_of_kohya({"output_dir": "out", "output_name": name}, notes)
    assert tree["output"]["destination"] == f"out/{'a' if str(name)[-1] == 'a' else 'last'}.safetensors"
    theirs = {"job": "extension", "config": {"name": name or "..", "process": [{"type": "sd_trainer"}]}}
    tree = tree_of_ai_toolkit(theirs, notes)
    assert tree["output"]["destination"] == f"models/{'a' if str(name)[-1] == 'a' else 'last'}.safetensors"


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.toml", b"= nothing", "is not a TOML file"),
        ("a.toml", b"\xff\xfe\x00", "is not valid UTF-8"),
        ("a.toml", b"title = 'a book'", "no known kohya settings"),
        ("a.safetensors", b"\x00", "a.safetensors"),
        ("a.json", b"[1, 2", "is not a JSON file"),
    ],
)
def test_an_unusable_file_gives_the_defaults_and_an_error(
    tmp_path: Path, name: str, content: bytes, words: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    loaded = load_any(path)
    assert loaded.config == Config()
    assert [(p.path, p.severity) for p in loaded.problems] == [("", "error")]
    assert words in loaded.problems[0].message
    assert load_any(tmp_path / f"missing{path.suffix}").problems[0].severity == "error"


def test_ours_and_onetrainers_are_not_taken_for_kohyas(tmp_path: Path) -> None:
    assert not is_kohya(encode(Config()))
    assert not is_kohya({"__version": 11, "optimizer_type": "x", "unet_lr": 1})
    path = tmp_path / "ours.json"
    save_file(Config(), path)
    assert load_any(path) == load_file(path)


@given(st.dictionaries(st.sampled_from(sorted(json.loads((FIXTURES / "gui_lora.json").read_text()))), garbage))
def test_any_values_at_all_give_a_valid_config(values: dict[str, Any]) -> None:
    tree = tree_of_kohya(values, [])
    saved = encode(decode(tree).config)
    assert encode(decode(saved).config) == saved


@given(st.dictionaries(st.sampled_from(sorted(METADATA)), st.text(max_size=30)))
def test_any_metadata_at_all_give_a_valid_config(metadata: dict[str, str]) -> None:
    config = decode(tree_of_kohya(kohya_args(metadata), [])).config
    assert decode(encode(config)).config == config


def test_arguments_and_sizes_are_read_in_every_form() -> None:
    assert arguments_of("weight_decay=0.1 betas=0.9,0.99 'name=a b'") == {
        "weight_decay": 0.1,
        "betas": (0.9, 0.99),
        "name": "a b",
    }
    assert arguments_of(["decouple=True", "nonsense", "=x"]) == {"decouple": True}
    assert arguments_of({"weight_decay": "0.1"}) == {"weight_decay": "0.1"}
    assert [sides_of(v) for v in (512, "512", "768,512", "(768, 512)", [768, 512], "none", None, [])] == [
        (512, 512),
        (512, 512),
        (768, 512),
        (768, 512),
        (768, 512),
        None,
        None,
        None,
    ]


def test_the_command_line_accepts_them_as_configs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(FIXTURES / "gui_lora.json"), "--json"]) == 2
    report = json.loads(capsys.readouterr().out)
    assert any("kohya config" in p["message"] for p in report["load"])
    assert any(p["path"].startswith("concepts") for p in report["problems"])


@pytest.mark.parametrize(
    ("args", "wanted"),
    [
        (
            "algo=lokr factor=8 decompose_both=True full_matrix=True use_cp=True",
            {"name": "lokr", "rank": 8, "factor": 8, "decompose_both": True, "full_matrix": True, "use_tucker": True},
        ),
        ("algo=loha use_tucker=True factor=-1", {"name": "loha", "rank": 8, "use_tucker": True}),
        (
            "algo=diag-oft constraint=0.001 rescaled=True",
            {"name": "oft", "block_size": 8, "rotates": "outputs", "constraint": 0.001, "rescale": True},
        ),
    ],
)
def test_arguments_of_lycoris_are_those_of_the_adapter(args: str, wanted: dict[str, Any]) -> None:
    given = {"network_module": "lycoris.kohya", "network_dim": 8, "network_args": args}
    loaded = decode(tree_of_kohya(given, []))
    own = loaded.config.adapter.model_dump()
    assert {name: own[name] for name in wanted} == wanted
    assert "kohya" not in loaded.config.unknown


def test_oft_of_sd_scripts_is_no_lora_and_has_other_blocks() -> None:
    notes: list[Problem] = []
    loaded = decode(tree_of_kohya({"network_module": "networks.oft", "network_dim": 4}, notes))
    assert loaded.config.adapter.model_dump().items() >= {"name": "oft", "block_size": 32}.items()
    assert [n.path for n in notes if n.severity == "warning"] == ["adapter.block_size"]


SCHEDULES_OF_THEIRS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"lr_scheduler": "polynomial", "lr_scheduler_power": 2}, {"name": "polynomial", "power": 2.0}),
    ({"lr_scheduler": "constant_with_warmup", "lr_warmup_steps": 0.1}, {"name": "constant", "warmup_share": 0.1}),
    (
        {"lr_scheduler": "cosine_with_min_lr", "lr_scheduler_min_lr_ratio": 0.2},
        {"name": "cosine", "min_factor": 0.2},
    ),
    (
        {"lr_scheduler": "inverse_sqrt", "lr_scheduler_timescale": 50},
        {"name": "inverse_sqrt", "timescale_steps": 50},
    ),
    ({"lr_scheduler": "warmup_stable_decay", "lr_decay_steps": 0.3}, {"name": "wsd", "decay_share": 0.3}),
    (
        {"lr_scheduler_type": "CosineAnnealingLR", "lr_scheduler_args": ["T_max=100", "eta_min=1e-6"]},
        {"name": "custom", "class_name": "CosineAnnealingLR", "arguments": "T_max = 100\neta_min = 1e-06"},
    ),
    ({"optimizer_type": "Adafactor", "lr_scheduler": "cosine"}, {"name": "adafactor"}),
    ({"lr_scheduler": "adafactor:0.0001", "optimizer_type": "Adafactor"}, {"name": "adafactor"}),
    (
        {"optimizer_type": "Adafactor", "optimizer_args": ["relative_step=False"], "lr_scheduler": "linear"},
        {"name": "linear"},
    ),
]


@pytest.mark.parametrize(("given", "expected"), SCHEDULES_OF_THEIRS)
def test_every_schedule_of_theirs_is_one_of_ours(given: dict[str, Any], expected: dict[str, Any]) -> None:
    training = tree_of_kohya(given, [])["training"]
    assert training["schedule"] == expected
    assert list(SCHEDULES[expected["name"]].problems(SCHEDULES[expected["name"]].settings(**expected))) == []


def test_a_schedule_that_is_unknown_is_named() -> None:
    notes: list[Problem] = []
    assert tree_of_kohya({"lr_scheduler": "piecewise_constant"}, notes)["training"]["schedule"] == {"name": "constant"}
    assert "'piecewise_constant' is not supported here" in " ".join(n.message for n in notes)


def test_their_adafactor_chooses_its_rate_unless_told_not_to() -> None:
    optimizer = tree_of_kohya({"optimizer_type": "Adafactor"}, [])["training"]["optimizer"]
    assert optimizer == {"name": "adafactor", "relative_step": True, "scale_parameter": True, "warmup_init": False}


def optimizer_of(**given: Any) -> tuple[dict[str, Any], str]:
    """The optimizer of a kohya config, and the warnings about it."""
    notes: list[Problem] = []
    loaded = decode(tree_of_kohya(given, notes))
    warnings = [p.message for p in (*notes, *loaded.problems) if p.severity == "warning"]
    return loaded.config.training.optimizer.model_dump(), " ".join(warnings)


def test_optimizers_by_name_and_by_the_path_of_their_class() -> None:
    """An unknown one becomes AdamW, which diverges with the learning rate 1 of an adaptive optimizer."""
    same = {
        "PagedAdamW32bit": "adamw",
        "DAdaptAdamPreprint": "dadapt_adam",
        "prodigyplus.ProdigyPlusScheduleFree": "prodigy_plus_schedule_free",
        "bitsandbytes.optim.AdEMAMix": "ademamix",
        "torch.optim.RMSprop": "rmsprop",
        "adv_optm.AdamW_adv": "adamw_adv",
        "SGDScheduleFree": "schedule_free_sgd",
    }
    for theirs, ours in same.items():
        settings, warnings = optimizer_of(optimizer_type=theirs)
        assert (settings["name"], warnings) == (ours, ""), theirs
    for theirs, ours in {"PagedLion8bit": "lion_8bit", "DAdaptAdanIP": "dadapt_adan", "Nonsense": "adamw"}.items():
        settings, warnings = optimizer_of(optimizer_type=theirs)
        assert settings["name"] == ours
        assert warnings, theirs


def test_all_arguments_that_our_optimizer_has_are_kept() -> None:
    arguments = "safeguard_warmup=True slice_p=3 betas=0.8,0.9 d_coef=2"
    prodigy, _ = optimizer_of(optimizer_type="Prodigy", optimizer_args=arguments)
    wanted = {"safeguard_warmup": True, "slice_p": 3, "beta1": 0.8, "beta2": 0.9, "d_coef": 2}
    assert prodigy.items() >= wanted.items()
    came, warnings = optimizer_of(optimizer_type="CAME", optimizer_args=["eps=1e-20,1e-10", "betas=.8,.9,.99"])
    assert came.items() >= {"eps": 1e-20, "eps2": 1e-10, "beta3": 0.99}.items()
    assert not warnings
    assert optimizer_of(optimizer_args=["amsgrad=True"])[0]["amsgrad"] is True
    sgd, _ = optimizer_of(optimizer_type="SGDNesterov")
    assert (sgd["momentum"], sgd["nesterov"]) == (0.9, True)
    fused, _ = optimizer_of(optimizer_type="AdaFactor", fused_backward_pass=True)
    assert fused["fused_back_pass"] is True


@pytest.mark.parametrize("algorithm", ["full", "ia3", "dylora", "glora"])
def test_a_network_that_does_not_exist_here_is_named(algorithm: str) -> None:
    notes: list[Problem] = []
    tree = tree_of_kohya({"network_module": "lycoris.kohya", "network_args": [f"algo={algorithm}"]}, notes)
    assert tree["adapter"]["name"] == "lora"
    assert [p.severity for p in notes if algorithm in p.message] == ["warning"]


def test_convolutions_and_the_preset_of_lycoris() -> None:
    def layers(**given: Any) -> tuple[str, int | None]:
        adapter = decode(tree_of_kohya({"network_dim": 8, **given}, [])).config.adapter
        return adapter.layers, getattr(adapter, "conv_rank", None)

    assert layers(network_module="networks.lora", network_args=["conv_dim=4"]) == ("all", 4)
    assert layers(LoRA_type="Standard", conv_dim=4) == ("attention_mlp", None), "kohya_ss does not pass it on"
    assert layers(network_module="lycoris.kohya", network_args=["algo=lora", "preset=attn-only"])[0] == "attention"
    assert layers(LoRA_type="LyCORIS/LoCon", LyCORIS_preset="attn-mlp")[0] == "attention_mlp"


def test_a_fine_tune_in_the_diffusers_format_is_a_folder() -> None:
    given = {"pretrained_model_name_or_path": "a", "output_dir": "out", "output_name": "m"}
    for theirs, ours, destination in (
        ("diffusers_safetensors", "diffusers", "out/m"),
        ("safetensors", "single_file", "out/m.safetensors"),
    ):
        output = tree_of_kohya({**given, "save_model_as": theirs}, [])["output"]
        assert (output["model_format"], output["destination"]) == (ours, destination)
