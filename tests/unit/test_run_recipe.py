"""Recipes as files of strangers, and how the recipes of two runs differ."""

from __future__ import annotations

import json
import os
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from modules.config.codec import decode, encode
from modules.config.schema import Config
from modules.settings.field import Section, records_of
from modules.system.errors import DarkroomError
from modules.system.versions import commit_of
from tests.builders.configs import laid_over
from trainer.cli.recipes import read_repeat, require_models
from trainer.run_folder.differences import PLACES, differences, missing_images
from trainer.run_folder.recipe import RECIPE_FILE, ConceptImages, Machine, ReadFile, Recipe, read_recipe, write_recipe

RECIPE = Recipe(
    config=encode(laid_over(Config(), {"concepts": [{"name": "zog", "path": "images"}]})),
    versions={"python": "3.12.1", "torch": "2.13.0"},
    machine=Machine("cpu", "a processor", "Linux x86_64", num_threads=1),
    files=(ReadFile("model.base_model", "unet/model.safetensors", 10, "aa"),),
    concepts=(ConceptImages("zog", "training", 2, "d1", images={"a.png": "11 22", "b.png": "33 44"}),),
)


def changed(**entries: Any) -> str:
    """Return the text of the recipe with other entries."""
    return json.dumps({**asdict(RECIPE), **entries})


def test_a_recipe_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_recipe(tmp_path, RECIPE)
    assert read_recipe(tmp_path) == read_recipe(tmp_path / RECIPE_FILE) == RECIPE


def test_a_recipe_of_the_first_version_is_read_without_samples_of_files(tmp_path: Path) -> None:
    files = [{name: value for name, value in asdict(file).items() if name != "sample"} for file in RECIPE.files]
    (tmp_path / RECIPE_FILE).write_text(changed(recipe_version=1, files=files))
    old = read_recipe(tmp_path)
    assert old.files == RECIPE.files
    write_recipe(tmp_path, old)  # as a run that is resumed
    assert read_recipe(tmp_path) == RECIPE


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is not valid JSON"),
        ("[" * 100_000, "is not valid JSON"),
        ("[]", 'has no "recipe_version"'),
        (json.dumps(encode(Config())), "train FILE takes a config"),
        (changed(recipe_version=True), 'has no "recipe_version"'),
        (changed(recipe_version=3), "is a recipe of version 3; this program reads versions 1 to 2"),
        (changed(recipe_version=0), "is a recipe of version 0"),
        (changed(run="rm"), "it has an unknown entry 'run'"),
        (changed(machine={**asdict(RECIPE.machine), "command": "rm"}), "it has an unknown entry 'machine.command'"),
        (changed(versions={"torch": 2}), "versions.torch is 2, but it should be text"),
        (changed(config=[]), "config is [], but"),
        (changed(files=[{"setting": "a", "name": "b"}]), "it has no entry 'files.0.num_bytes'"),
        ('{"recipe_version": 1}', "it has no entry"),
    ],
)
def test_anything_else_is_refused_with_a_sentence(tmp_path: Path, text: str, reason: str) -> None:
    file = tmp_path / "other.json"
    file.write_text(text)
    with pytest.raises(DarkroomError) as refused:
        read_recipe(file)
    assert reason in str(refused.value)
    assert str(file) in str(refused.value)


def test_a_pipe_or_a_folder_without_a_recipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DarkroomError, match="a pipe or a device"):
        read_recipe(tmp_path / "pipe")
    with pytest.raises(DarkroomError, match="There is no recipe"):
        read_recipe(tmp_path)


def test_a_recipe_never_decides_where_something_is_written(tmp_path: Path) -> None:
    evil = str(tmp_path / "evil")
    config = laid_over(
        Config(),
        {
            "general": {"workspace_dir": evil, "cache_dir": evil},
            "model": {"hub_cache_dir": evil},
            "quantization": {"cache_dir": evil},
            "output": {"destination": f"{evil}/../../.bashrc"},
        },
    )
    write_recipe(tmp_path, replace(RECIPE, config=encode(config)))
    todo = read_repeat(str(tmp_path / RECIPE_FILE), ["training.epochs=7"])
    assert evil not in json.dumps(encode(todo.config))
    assert todo.config.output.destination == "models/bashrc"
    assert (todo.config.training.epochs, todo.config.general.num_threads) == (7, 1)


def test_every_setting_with_a_place_is_known_as_written_or_only_read() -> None:
    read = {"reward.models.*.clip_model", "sampling.wildcards_dir", "concepts.*.path"}
    folders = ("masks_folder", "conditioning_folder", "conditioning_folder_2", "conditioning_folder_3")
    read |= {f"concepts.*.image.{name}" for name in folders}

    def places(section: type[Section], prefix: str = "") -> set[str]:
        found = set()
        for record in records_of(section):
            if record.setting.path_kind in ("folder", "save"):
                found.add(f"{prefix}{record.path}")
            if isinstance(record.item, type) and issubclass(record.item, Section):
                found |= places(record.item, f"{prefix}{record.path}.*.")
        return found

    assert places(Config) == {*PLACES} | read


def test_a_fork_is_not_repeated_from_its_recipe(tmp_path: Path) -> None:
    write_recipe(tmp_path, replace(RECIPE, origin="2026-01-01_00-00-00, step 5"))
    with pytest.raises(DarkroomError, match="the recipe of a fork"):
        read_repeat(str(tmp_path), [])


@pytest.mark.parametrize(
    ("base_model", "offline", "is_refused"),
    [("owner/model.1-dev", False, False), ("owner/model.1-dev", True, True), ("models/gone.safetensors", False, True)],
)
def test_a_model_of_a_recipe_is_here_or_can_be_downloaded(base_model: str, offline: bool, is_refused: bool) -> None:
    config = laid_over(Config(), {"model": {"base_model": base_model, "offline": offline}})
    with pytest.raises(DarkroomError, match="is not on this machine") if is_refused else nullcontext():
        require_models(RECIPE, config)


@pytest.mark.parametrize("setting", ["zog.path", "model"])
def test_a_model_of_a_setting_that_is_not_there_ends_nothing(setting: str) -> None:
    require_models(replace(RECIPE, files=(replace(RECIPE.files[0], setting=setting),)), Config())


OTHER_CONFIG = laid_over(
    Config(),
    {
        "general": {"notes": "new", "workspace_dir": "elsewhere"},
        "concepts": [{"name": "zog", "path": "moved", "repeats": 3.0}],
        "training": {"learning_rate": 0.5},
    },
)


@pytest.mark.parametrize(
    ("now", "texts"),
    [
        (RECIPE, []),
        (
            replace(RECIPE, config=encode(OTHER_CONFIG)),
            ["zog: Repeats is 3.0 (was 1.0)", "Learning rate is 0.5 (was 0.0001)"],
        ),
        (
            replace(RECIPE, versions={"python": "3.12.1", "torch": "2.14.0", "peft": "1"}),
            ["torch is 2.14.0 (was 2.13.0)", "peft is 1 (was absent)"],
        ),
        (
            replace(RECIPE, versions=RECIPE.versions | {"darkroom commit": 40 * "a", "triton": "3.5.0+rocm7.1.git1"}),
            [f"darkroom commit is {12 * 'a'} (was absent)", "triton is 3.5.0+rocm7.1.git1 (was absent)"],
        ),
        (
            replace(RECIPE, machine=replace(RECIPE.machine, driver="555", num_threads=4)),
            ["the driver is 555 (was unknown)", "the number of CPU threads is 4 (was 1)"],
        ),
        (
            replace(RECIPE, files=(ReadFile("model.base_model", "unet/model.safetensors", 10, "bb"),)),
            ["unet/model.safetensors (Base model) has another content"],
        ),
        (replace(RECIPE, files=(ReadFile("model.base_model", "unet.safetensors", 10, "aa"),)), []),
        (
            replace(RECIPE, concepts=(replace(RECIPE.concepts[0], digest="d2", images={"a.png": "9 8", "c": "1 2"}),)),
            [
                "1 image of zog is missing (b.png)",
                "1 image of zog is new (c)",
                "1 image of zog is changed (a.png)",
                "1 caption of zog is changed (a.png)",
            ],
        ),
        (
            replace(RECIPE, concepts=(ConceptImages("zog", "training", 1_000_000, "d2"),)),
            ["the images or captions of zog differ (1,000,000, was 2)"],
        ),
        (
            replace(RECIPE, concepts=(replace(RECIPE.concepts[0], digest="d2"),)),
            ["the images of zog are in another order"],
        ),
        (replace(RECIPE, choices={"TF32": "all"}), ["the run's own choice of TF32 is all (was absent)"]),
    ],
)  # fmt: skip
def test_each_difference_is_named(now: Recipe, texts: list[str]) -> None:
    assert [difference.text for difference in differences(RECIPE, now)] == texts


def test_images_that_are_gone_are_found_without_a_list_of_them() -> None:
    few = (ConceptImages("zog", "training", 1, "d2", images={"a.png": "1 2"}),)
    many = (ConceptImages("zog", "training", 1_000_000, "d3"),)
    assert missing_images(RECIPE.concepts, few) == {"zog": ["b.png"]}
    assert missing_images(many, few) == {"zog": []}
    assert missing_images(few, RECIPE.concepts) == missing_images(few, many) == {}
    assert missing_images(RECIPE.concepts, ()) == {"zog": []}


def test_the_commit_is_read_from_a_repository_and_from_its_worktrees(tmp_path: Path) -> None:
    git, commit = tmp_path / "main" / ".git", "1" * 40
    (git / "refs" / "heads").mkdir(parents=True)
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    assert commit_of(tmp_path / "main") == commit_of(tmp_path) == ""
    (git / "packed-refs").write_text(f"# pack-refs\n{'2' * 40} refs/heads/main\n")
    assert commit_of(tmp_path / "main") == "2" * 40
    (git / "refs" / "heads" / "main").write_text(f"{commit}\n")
    assert commit_of(tmp_path / "main") == commit
    of_tree = git / "worktrees" / "tree"
    of_tree.mkdir(parents=True)
    (of_tree / "HEAD").write_text("ref: refs/heads/main\n")
    (of_tree / "commondir").write_text("../..\n")
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / ".git").write_text(f"gitdir: {of_tree}\n")
    assert commit_of(tmp_path / "tree") == commit
    (of_tree / "HEAD").write_text("not a commit")
    assert commit_of(tmp_path / "tree") == ""


def test_another_method_is_one_difference_and_so_is_a_new_entry() -> None:
    """Each setting of both methods was listed, those of the former one by their paths, and one was the likely cause."""

    def recipe(**changes: Any) -> Recipe:
        return replace(RECIPE, config=encode(laid_over(decode(dict(RECIPE.config)).config, changes)))

    before = recipe(training={"method": {"name": "dpo"}})
    now = recipe(
        training={"method": {"name": "grpo"}},
        reward={"models": [{"kind": "brightness"}], "measure_every": {"n": 2, "unit": "step"}},
        parts={"unet": {"train": False}},
    )
    assert [d.text for d in differences(before, now)] == [
        "unet: Train is false (was true)",
        "Measure the reward is 2 steps (was 20 steps)",
        "Reward models: number 1 is new",
        "Method is GRPO (was Diffusion-DPO)",
    ]
    assert "Reward models: number 1 is missing" in [d.text for d in differences(now, before)]
