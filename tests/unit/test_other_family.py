"""A config moved to another model family: what stays, what the preset sets, and what is left out with the reason."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from itertools import permutations
from pathlib import Path

import pytest

from modules.config.codec import decode, encode, load_file
from modules.config.other_family import start_of, train_on
from modules.config.presets import Preset, families_for_card, list_presets, preset_for, readable_configs
from modules.config.rules import problems_of
from modules.config.schema import Config
from modules.families.registry import FAMILIES, newest_families, registered
from modules.sampling.registry import SAMPLERS
from modules.settings.every import Every
from tests.builders.toy_family.spec import TOY
from trainer.__main__ import main

PAIRS = list(permutations([*FAMILIES, TOY.name], 2))


def presets() -> list[Preset]:
    return [p for p in list_presets() if p.is_built_in]


@cache
def configs() -> Mapping[Preset, Config]:
    return readable_configs(presets())


@cache
def start(family: str) -> Config:
    preset = preset_for(family, Config(), 8, configs())
    return preset.load().config if preset else start_of(family)


def rich(family: str) -> Config:
    """A config of a family that sets what another family may not have."""
    spec = FAMILIES[family]
    variant = next(iter(spec.variants or spec.inputs), "text_to_image")
    tree = {
        "general": {"workspace_dir": "work/dog", "notes": "my run"},
        "model": {"family": family, "base_model": "somebody/model", "variant": variant},
        "data": {"resolution_px": [640], "caption_dropout": 0.1},
        "concepts": [
            {"path": "dogs", "text": {"trigger_word": "zog", "shuffle_tags": True}},
            {"path": "prior", "kind": "prior_prediction"},
        ],
        "training": {
            "epochs": 7,
            "batch_size": 3,
            "optimizer": "prodigy",
            "learning_rate": 1.0,
            "loss": {"weighting": "debiased", "mix": {"huber": {"strength": 0.5, "schedule": "snr"}}},
        },
        "adapter": {"name": "lora", "start_from": "old.safetensors", "layers": "custom", "custom_layers": "up_blocks"},
        "embeddings": {"words": [{"placeholder": "<a>", "file": "a.safetensors"}, {"placeholder": "<b>"}]},
        "sampling": {
            "model": "somebody/turbo",
            "prompts": [
                {"prompt": "a zog", "sampler": "euler_a", "width_px": 1000, "height_px": 520, "seed": 5},
                {"prompt": "fast", "sampler": "lcm", "steps": 4, "guidance": 1},
            ],
        },
        "backup": {"save_every": {"n": 100, "unit": "step"}},
        "output": {"destination": "out/zog.v2.safetensors"},
    }
    return Config.model_validate({"darkroom_version": 7, **tree})


@pytest.mark.daily(40)
@pytest.mark.parametrize(("source", "target"), PAIRS, ids=lambda name: name)
def test_any_family_to_any_other_gives_a_valid_config_that_keeps_the_dataset(source: str, target: str) -> None:
    with registered(TOY):
        before = rich(source)
        known = {(p.path, p.message) for p in problems_of(before)}
        begin = start(target)
        moved = train_on(before, begin)
        config = moved.config
        assert config.family.name == target
        new_errors = [p for p in problems_of(config) if p.severity == "error" and (p.path, p.message) not in known]
        assert [p for p in new_errors if p not in problems_of(begin)] == []
        assert config.model == begin.model
        assert config.concepts == before.concepts
        step_px = before.data.bucket_step_px
        if step_px % config.family.size_step_px:  # no bucket of before would fit
            step_px = config.family.size_step_px
        assert config.data == before.data.model_copy(update={"bucket_step_px": step_px})
        assert (config.training.epochs, config.general.workspace_dir) == (7, "work/dog")
        assert config.output.destination == "out/zog.v2.safetensors"
        assert config.sampling.model == ""
        _check_prompts(config)
        loaded = decode(json.loads(json.dumps(encode(config))))
        assert (loaded.config, loaded.problems) == (config, [])
        assert {"adapter.start_from", "sampling.model", "adapter.custom_layers", "embeddings.words"} <= {
            note.path for note in moved.notes
        }


def _check_prompts(config: Config) -> None:
    first, second = config.sampling.prompts
    assert (first.prompt, first.seed, second.prompt) == ("a zog", 5, "fast")
    assert all(SAMPLERS[p.sampler].supports(config.family.process.predictions) for p in (first, second))
    assert first.width_px % config.family.size_step_px == first.height_px % config.family.size_step_px == 0
    assert (second.steps, second.guidance) == (25, config.family.sample_guidance)


def _moves_without_a_new_error(preset: Preset, family: str) -> None:
    """A preset that samples its images from prompts alone needs images elsewhere, which the user adds."""
    before = preset.load().config
    known = {p.path for p in problems_of(before)}
    config = train_on(before, start(family)).config
    errors = {p.path for p in problems_of(config) if p.severity == "error"}
    assert errors - known <= {"concepts"}, (preset.name, family)


@pytest.mark.full
def test_every_preset_moves_to_a_family_without_a_new_error_about_a_setting() -> None:
    families = list(FAMILIES)
    for number, preset in enumerate(presets()):
        _moves_without_a_new_error(preset, families[number % len(families)])


@pytest.mark.full
@pytest.mark.parametrize("family", FAMILIES)
def test_every_preset_moves_to_every_family(family: str) -> None:
    for preset in presets():
        _moves_without_a_new_error(preset, family)


def test_what_the_model_before_had_is_listed_with_the_reason() -> None:
    before = rich("sdxl")
    notes = {n.path: str(n) for n in train_on(before, start("z_image")).notes}
    assert "Z-Image has no Inpainting models" in notes["model.variant"]
    assert "old.safetensors" in notes["adapter.start_from"]
    assert "Stable Diffusion XL models" in notes["adapter.start_from"]
    assert "Z-Image is trained without its text encoders" in notes["parts.text_encoder.train"]
    assert "<a>, <b>" in notes["embeddings.words"]
    assert "not defined for flow matching" in notes["training.loss.weighting"]
    assert "Euler a to DDIM" in notes["sampling.prompts"]
    assert "fit the run to the card" in notes["data.resolution_px"]
    assert "Optimizer" in notes[""]
    assert "Notes" not in notes[""]


def test_embeddings_without_a_file_start_anew_where_the_family_has_them() -> None:
    before = rich("sdxl")
    moved = train_on(before, start("sd"))
    assert [w.placeholder for w in moved.config.embeddings.words] == ["<b>"]
    assert any("(<a>) are left out" in n.message for n in moved.notes)


def test_periods_in_steps_become_as_many_images() -> None:
    before = rich("sdxl")  # 3 images per step
    begin = start("flux")
    images = begin.training.batch_size * begin.training.accumulation_steps
    assert train_on(before, begin).config.backup.save_every == Every(n=round(300 / images), unit="step")


@pytest.mark.parametrize(
    ("place", "like", "expected"),
    [
        ("out/dog.safetensors", "models/x.safetensors", "out/dog.safetensors"),
        ("out/dog.v2", "models/x.safetensors", "out/dog.v2.safetensors"),
        ("out/dog.ckpt", "models/x.safetensors", "out/dog.safetensors"),
        ("out/dog.safetensors", "models/folder", "out/dog"),
    ],
)
def test_the_result_keeps_its_name_and_gets_the_ending_of_its_kind(place: str, like: str, expected: str) -> None:
    before = Config.model_validate({"output": {"destination": place}})
    begin = Config.model_validate({"model": {"family": "sdxl"}, "output": {"destination": like}})
    assert train_on(before, begin).config.output.destination == expected


def test_the_same_process_keeps_sampler_and_guidance() -> None:
    before = rich("sd")
    first = train_on(before, start("sdxl")).config.sampling.prompts[0]
    assert (first.sampler, first.guidance) == ("euler_a", 7.5)


@pytest.mark.parametrize(
    ("family", "like", "card_gb", "name"),
    [
        ("sdxl", {}, 12, "#sdxl 1.0 LoRA"),
        ("sdxl", {}, 11, "#sdxl 1.0 LoRA 8 GB"),
        ("sdxl", {}, 0, "#sdxl 1.0 LoRA 6 GB"),
        ("sdxl", {}, 4, "#sdxl 1.0 LoRA 6 GB"),
        ("sdxl", {"training": {"trains": "full"}}, 16, "#sdxl 1.0 fine-tune 16 GB"),
        ("sdxl", {"training": {"trains": "full"}}, 8, "#sdxl 1.0 LoRA 8 GB"),
        ("sdxl", {"model": {"variant": "inpainting"}}, 24, "#sdxl 1.0 inpainting LoRA"),
        ("sd", {"training": {"method": "alignprop"}}, 16, "#sd 1.5 AlignProp LoRA"),
        ("sd", {"training": {"method": "alignprop"}}, 8, "#sd 1.5 LoRA"),
    ],
)
def test_the_preset_is_like_the_run_and_for_the_card(family: str, like: dict, card_gb: int, name: str) -> None:  # type: ignore[type-arg]
    preset = preset_for(family, Config.model_validate(like), card_gb, configs())
    assert preset is not None
    assert preset.name == name


def test_presets_are_listed_in_the_order_of_the_families() -> None:
    listed = list(dict.fromkeys(p.group for p in presets()))
    assert listed == [family for family in FAMILIES if family in listed]
    assert set(families_for_card(configs(), 4)) == set()
    assert families_for_card(configs(), 1000) == tuple(name for name in newest_families() if name in listed)


def test_families_that_fit_by_offloading_most_layers_are_offered_last() -> None:
    """Krea 2 is the newest that is not for research alone; with 8 GB most of it waits in the computer's memory."""
    of_8_gb = families_for_card(configs(), 8)
    assert of_8_gb[0] == "anima"
    assert of_8_gb.index("krea2") > of_8_gb.index("sdxl")
    assert families_for_card(configs(), 6)[0] == "anima"
    assert families_for_card(configs(), 12)[0] == "krea2"


def test_the_command_line_moves_a_config_and_only_writes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, new = tmp_path / "mine.json", tmp_path / "new.json"
    file.write_text(json.dumps({"darkroom_version": 7, "model": {"family": "sdxl"}, "training": {"epochs": 3}}))
    text = file.read_text()
    changes = ["--set", "training.seed_is_no_setting=1"]
    assert main(["check", str(file), "--family", "z_image", *changes]) == 2
    assert main(["check", str(file), "--family", "z_image", "--set", "training.batch_size=3", "--save", str(new)]) == 2
    assert "Moved from Stable Diffusion XL to Z-Image: #z-image LoRA" in capsys.readouterr().out
    written = load_file(new).config
    assert (written.family.name, written.training.epochs, written.training.batch_size) == ("z_image", 3, 3)
    assert file.read_text() == text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--family", "nope"], "There is no model family 'nope'.\nFamilies are: sd, sdxl"),
        (["--family", "flux", "--preset", "#sd 1.5 LoRA"], "is for Stable Diffusion 1 and 2, not for FLUX.1"),
        (["--family", "flux", "--preset", "nope"], "There is no preset 'nope'"),
    ],
)
def test_an_unknown_family_or_the_preset_of_another_one_is_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "#sdxl 1.0 LoRA", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_the_family_that_a_config_has_changes_nothing() -> None:
    from trainer.jobs.config import read_config

    assert read_config("#sdxl 1.0 LoRA", family="sdxl") == read_config("#sdxl 1.0 LoRA")
