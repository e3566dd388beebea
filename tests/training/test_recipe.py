"""A run repeated from its recipe: bit-equal, or with everything named that differs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from modules.config.schema import Config
from tests.builders.configs import laid_over, small_config
from tests.builders.images import draw_image, draw_mask
from tests.builders.runs import run, stop_at
from trainer.__main__ import main
from trainer.data import concept_digests
from trainer.run_folder.payload import payload_of
from trainer.run_folder.recipe import Recipe, read_recipe


def config_of(folder: Path, model: Path, images: Path) -> Config:
    shutil.copytree(images, folder / "images")
    shutil.copytree(model, folder / "model")
    changes = {"training": {"epochs": 1}, "backup": {"at_end": False}, "concepts": [{"path": str(folder / "images")}]}
    return laid_over(small_config(folder, model=folder / "model", images=folder / "images"), changes)


def recipe_of(config: Config) -> tuple[Path, Recipe]:
    """Return the folder and the recipe of the newest run of a config."""
    run_dir = sorted((Path(config.general.workspace_dir) / "runs").iterdir())[-1]
    return run_dir, read_recipe(run_dir)


def repeat(recipe: Path, folder: Path, *changes: str) -> int:
    """Repeat a recipe with its cache and its result in a folder."""
    places = (f"general.cache_dir={folder}/cache2", f"output.destination={folder}/again/lora.safetensors")
    return main(["train", "--recipe", str(recipe), *(f"--set={change}" for change in (*places, *changes))])


def test_a_recipe_repeats_its_run_or_names_what_differs(
    tiny_sd: Path, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = config_of(tmp_path, tiny_sd, images)
    run(config)
    run_dir, recipe = recipe_of(config)
    first = Path(config.output.destination)
    assert recipe.result is not None
    assert (Path(recipe.result.path), recipe.result.step) == (first, 3)
    assert payload_of(first) == (recipe.result.num_tensors, recipe.result.payload)
    assert all(file.digest for file in recipe.files)
    assert {file.name.partition("/")[0] for file in recipe.files} >= {"unet", "vae", "text_encoder", "model_index.json"}
    content = first.read_bytes()

    assert repeat(run_dir, tmp_path) == 0
    again, out = recipe_of(config)[1], capsys.readouterr().out
    assert "The result is bit-equal to the recipe's" in out
    assert again.result is not None
    assert (again.result.payload, Path(again.result.path).parent.name) == (recipe.result.payload, "again")
    assert first.read_bytes() == content

    draw_image(64, 64, 77).save(tmp_path / "images" / "000.png")
    (tmp_path / "images" / "001.txt").write_text("another caption")
    weights = tmp_path / "model" / "unet" / "diffusion_pytorch_model.safetensors"
    last = weights.read_bytes()
    weights.write_bytes(last[:-1] + bytes([last[-1] ^ 1]))
    assert repeat(run_dir, tmp_path, "training.learning_rate=0.1") == 3
    shown = capsys.readouterr()
    assert "tensors differ, by" in shown.out
    for sentence in (
        "1 image of images is changed (000.png).",
        "1 caption of images is changed (001.png).",
        "unet/diffusion_pytorch_model.safetensors (Base model) has another content.",
        "Learning rate is 0.1 (was 0.001).",
    ):
        assert f"warning: {sentence}" in shown.err
        assert sentence in shown.out


CASES: dict[str, dict[str, Any]] = {
    "full fine-tuning": {"training": {"trains": "full"}, "output": {"dtype": "float32"}},
    "masks, validation, averages and concepts": {
        "concepts": [
            {"path": "images", "image": {"flip": "random"}},
            {"path": "more", "repeats": 2.0},
            {"path": "more", "kind": "validation"},
        ],
        "data": {"caption_dropout": 0.3},
        "masks": {"enabled": True, "unmasked_probability": 0.3},
        "training": {"ema": {"mode": "train_device", "decay": 0.9}, "accumulation_steps": 2},
        "validation": {"every": {"n": 2, "unit": "step"}, "result": "best"},
    },
    "an embedding": {
        "training": {"trains": "embedding", "learning_rate": 1e-2},
        "embeddings": {"words": [{"placeholder": "<zog>", "initial_text": "cat"}]},
    },
    "a flow model": {},
    "a resumed run": {"training": {"epochs": 2}},
    "a flow model, resumed and averaged": {"training": {"epochs": 2, "ema": {"mode": "train_device", "decay": 0.9}}},
}
_DAILY = "masks, validation, averages and concepts"


@pytest.mark.parametrize("case", [pytest.param(c, marks=() if c == _DAILY else pytest.mark.full) for c in CASES])
def test_each_way_to_train_is_repeated_bit_equal_and_a_changed_image_is_named(
    case: str, images: Path, tmp_path: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    model = request.getfixturevalue("tiny_z_image" if "flow" in case else "tiny_sd")
    changes = json.loads(json.dumps(CASES[case]))
    for concept in changes.get("concepts", ()):
        concept["path"] = str(tmp_path / concept["path"])
    config = laid_over(config_of(tmp_path, model, images), changes)
    shutil.copytree(images, tmp_path / "more")
    draw_mask(tmp_path / "images" / "000-masklabel.png")
    for caption in (tmp_path / "images").glob("*.txt"):
        caption.write_text("a <zog>")
    if "resumed" in case:
        run(config, on_event=stop_at(2))
        (run_dir,) = (Path(config.general.workspace_dir) / "runs").iterdir()
        run(config, resume_from=run_dir)
    else:
        run(config)
    run_dir, recipe = recipe_of(config)
    assert recipe.resumed_at == ((2,) if "resumed" in case else ())
    assert repeat(run_dir, tmp_path) == 0, capsys.readouterr()
    assert "The result is bit-equal to the recipe's" in capsys.readouterr().out

    draw_image(64, 64, 77).save(tmp_path / "images" / "001.png")
    assert repeat(run_dir, tmp_path) == 3
    shown = capsys.readouterr()
    assert "1 image of images is changed (001.png)." in shown.out
    assert "warning: 1 image of images is changed (001.png)." in shown.err


def test_a_recipe_is_not_repeated_without_its_images_or_its_model(
    tiny_sd: Path, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And that of a stopped run has nothing to compare."""
    config = config_of(tmp_path, tiny_sd, images)
    run(config, on_event=stop_at(1))
    run_dir, recipe = recipe_of(config)
    assert recipe.result is None
    assert repeat(run_dir, tmp_path) == 0
    assert "there is nothing to compare" in capsys.readouterr().out

    num_runs = len(list(run_dir.parent.iterdir()))
    (tmp_path / "images" / "002.png").rename(tmp_path / "002.png")
    assert repeat(run_dir, tmp_path) == 2
    assert "images of the recipe are missing: 1 image of images (002.png)." in capsys.readouterr().err
    (tmp_path / "model").rename(tmp_path / "moved")
    assert repeat(run_dir, tmp_path) == 2
    assert "is not on this machine.\nGive the place of the model with --set, such as --set model.base_model=PATH." in (
        capsys.readouterr().err
    )
    (tmp_path / "002.png").rename(tmp_path / "images" / "002.png")
    (tmp_path / "images").rename(tmp_path / "photos")
    places = (f"model.base_model={tmp_path}/moved", f"concepts.0.path={tmp_path}/photos")
    assert repeat(run_dir, tmp_path, places[0]) == 2
    assert "--set concepts.0.path=FOLDER" in capsys.readouterr().err
    assert len(list(run_dir.parent.iterdir())) == num_runs
    assert main(["train", "--recipe", str(run_dir), "--overwrite", "--fit", "8GB"]) == 2
    assert "--recipe cannot be used with --fit, --overwrite." in capsys.readouterr().err
    assert repeat(run_dir, tmp_path, *places) == 0
    assert [f.setting for f in recipe_of(config)[1].files] == [f.setting for f in recipe.files]


@pytest.mark.parametrize("texts", [[], ["a"], ['a "b"\\', "é \u2028 \ud800", "", "x\n\t\x00"]])
def test_digests_are_of_the_texts_as_json(texts: list[str]) -> None:
    """Also of those of earlier versions."""
    assert concept_digests._as_json(texts) == json.dumps(texts).encode()
