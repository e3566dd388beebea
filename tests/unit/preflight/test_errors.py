"""Errors of a run are reported before it starts: each with its field, all at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modules.config.codec import decode
from modules.config.rules import problems_of
from modules.config.schema import Config
from modules.settings.edit import get_path, set_path
from tests.builders.configs import small_config
from tests.builders.images import draw_folder, draw_image
from tests.unit.preflight.setups import Break, at_output, base_model, changed, concept, errors, write_model
from tests.unit.strategies import few, odd_texts
from trainer.preflight import Report, check


def output_is_a_folder(config: Config, tmp: Path) -> Config:
    (tmp / "folder.safetensors").mkdir()
    return at_output("folder.safetensors")(config, tmp)


def output_behind_a_file(config: Config, tmp: Path) -> Config:
    (tmp / "in the way").write_text("")
    return at_output("in the way/lora.safetensors")(config, tmp)


def workspace_is_a_file(config: Config, tmp: Path) -> Config:
    (tmp / "file").write_text("")
    return changed(config, general__workspace_dir=str(tmp / "file"))


def cache_behind_a_file(config: Config, tmp: Path) -> Config:
    (tmp / "file").write_text("")
    return changed(config, general__cache_dir=str(tmp / "file" / "cache"))


def with_model(change: Callable[[Path], object]) -> Break:
    def apply(config: Config, tmp: Path) -> Config:
        change(tmp / "model")
        return config

    return apply


def model_is_a_file(config: Config, tmp: Path) -> Config:
    (tmp / "model.safetensors").write_bytes(b"x")
    return changed(config, model__base_model=str(tmp / "model.safetensors"))


def empty_concept(config: Config, tmp: Path) -> Config:
    (tmp / "empty").mkdir()
    return concept(path="TMP/empty")(config, tmp)


def concept_of_broken_files(config: Config, tmp: Path) -> Config:
    (tmp / "broken").mkdir()
    (tmp / "broken" / "a.png").write_bytes(b"")
    (tmp / "broken" / "b.jpg").write_text("<html>")
    return concept(path="TMP/broken")(config, tmp)


def images_only_below(config: Config, tmp: Path) -> Config:
    draw_folder(tmp / "above" / "below", sizes=[(64, 64)])
    return concept(path="TMP/above")(config, tmp)


def concept_is_no_shard(config: Config, tmp: Path) -> Config:
    (tmp / "a.tar").write_bytes(b"no archive")
    return changed(config, concepts__0__path=str(tmp / "a.tar"))


def concept_is_no_image(config: Config, tmp: Path) -> Config:
    (tmp / "notes.txt").write_text("not an image")
    return changed(config, concepts__0__path=str(tmp / "notes.txt"))


def nothing_trained(config: Config, tmp: Path) -> Config:
    return changed(config, parts__unet__train=False, parts__text_encoder__train=False)


def seldom_shown(config: Config, tmp: Path) -> Config:
    return changed(config, concepts__0__repeats=0.1, training__epochs=20)


def may_not_replace(config: Config, tmp: Path) -> Config:
    (tmp / "precious.safetensors").write_bytes(b"precious")
    return changed(at_output("precious.safetensors")(config, tmp), output__never_replace=True)


def from_onetrainer(config: Config, tmp: Path) -> Config:
    theirs = decode({"training_method": "LORA", "model_type": "ONE_OF_LATER_YEARS"}).config
    return config.model_copy(update={"unknown": theirs.unknown})


BROKEN: dict[str, tuple[Break, str]] = {
    "output is a folder": (output_is_a_folder, "output.destination"),
    "output behind a file": (output_behind_a_file, "output.destination"),
    "output without a name": (lambda c, tmp: changed(c, output__destination=" "), "output.destination"),
    "output of another kind": (at_output("lora.ckpt"), "output.destination"),
    "output without a suffix": (at_output("lora"), "output.destination"),
    "output with too long a name": (at_output("x" * 300 + ".safetensors"), "output.destination"),
    "output in a folder of too long a name": (at_output("x" * 300 + "/lora.safetensors"), "output.destination"),
    "output with a NUL": (at_output("a\x00b.safetensors"), "output.destination"),
    "workspace is a file": (workspace_is_a_file, "general.workspace_dir"),
    "workspace without a name": (lambda c, tmp: changed(c, general__workspace_dir=""), "general.workspace_dir"),
    "cache behind a file": (cache_behind_a_file, "general.cache_dir"),
    "cache without a name": (lambda c, tmp: changed(c, general__cache_dir="  "), "general.cache_dir"),
    "no base model": (base_model(""), "model.base_model"),
    "base model missing": (base_model("TMP/nowhere"), "model.base_model"),
    "base model of a name alone": (base_model("sd15"), "model.base_model"),
    "base model of a Windows path": (base_model("C:\\models\\sd15"), "model.base_model"),
    "base model of a drive": (base_model("C:/sd15"), "model.base_model"),
    "base model of a sentence": (base_model("a photo of / a cat"), "model.base_model"),
    "base model of a long text": (base_model("x" * 5000), "model.base_model"),
    "base model of an unknown user's home": (base_model("~no such user/model"), "model.base_model"),
    "base model is a file": (model_is_a_file, "model.base_model"),
    "no model_index.json": (with_model(lambda m: (m / "model_index.json").unlink()), "model.base_model"),
    "broken model_index.json": (with_model(lambda m: (m / "model_index.json").write_text("{")), "model.base_model"),
    "deep model_index.json": (
        with_model(lambda m: (m / "model_index.json").write_text("[" * 100_000)), "model.base_model"),
    "model_index.json is a list": (with_model(lambda m: (m / "model_index.json").write_text("[]")), "model.base_model"),
    "another pipeline": (
        with_model(lambda m: (m / "model_index.json").write_text('{"_class_name": "FluxPipeline"}')),
        "model.base_model"),
    "no UNet": (with_model(lambda m: (m / "unet" / "config.json").unlink()), "model.base_model"),
    "no weights of the VAE": (
        with_model(lambda m: (m / "vae" / "diffusion_pytorch_model.safetensors").unlink()), "model.base_model"),
    "concept without a folder": (concept(path=" "), "concepts.0.path"),
    "concept missing": (concept(path="TMP/nowhere"), "concepts.0.path"),
    "concept is a file that is no image": (concept_is_no_image, "concepts.0.path"),
    "concept with a background that is no colour": (concept(background="no colour"), "concepts.0.background"),
    "concept of a shard that is damaged": (concept_is_no_shard, "concepts.0.path"),
    "concept of the hub": (concept(path="someone/some-images"), "concepts.0.path"),
    "concept of an unknown user's home": (concept(path="~no such user/x"), "concepts.0.path"),
    "concept of a long text": (concept(path="x" * 5000), "concepts.0.path"),
    "concept with a NUL": (concept(path="a\x00b"), "concepts.0.path"),
    "concept is empty": (empty_concept, "concepts.0.path"),
    "concept of broken files": (concept_of_broken_files, "concepts.0.path"),
    "images only in subfolders": (images_only_below, "concepts.0.path"),
    "no concept": (lambda c, tmp: changed(c, concepts=[]), "concepts"),
    "all concepts disabled": (concept(enabled=False), "concepts"),
    "only a validation concept": (concept(kind="validation"), "concepts"),
    "no repeats": (concept(repeats=0.0), "concepts"),
    "epochs without an image": (seldom_shown, "concepts"),
    "validation without a concept": (
        lambda c, tmp: changed(c, validation__every={"n": 1, "unit": "epoch"}), "validation.every"),
    "nothing trained": (nothing_trained, "parts.unet.train"),
    "learning rate 0": (lambda c, tmp: changed(c, training__learning_rate=0.0), "training.learning_rate"),
    "a part's learning rate 0": (
        lambda c, tmp: changed(c, parts__text_encoder__learning_rate=0.0), "parts.text_encoder.learning_rate"),
    "no layers named": (
        lambda c, tmp: changed(c, adapter__layers="custom", adapter__custom_layers=""), "adapter.custom_layers"),
    "only commas named": (
        lambda c, tmp: changed(c, adapter__layers="custom", adapter__custom_layers=" , ,"), "adapter.custom_layers"),
    "half a fixed size": (lambda c, tmp: changed(c, data__fixed_width_px=512), "data.fixed_height_px"),
    "bucket step that is not a multiple": (lambda c, tmp: changed(c, data__bucket_step_px=12), "data.bucket_step_px"),
    "a file that may not be replaced": (may_not_replace, "output.destination"),
    "not a device": (lambda c, tmp: changed(c, general__train_device="gpu"), "general.train_device"),
    "a missing GPU": (lambda c, tmp: changed(c, general__train_device="cuda:1"), "general.train_device"),
    "not an offload device": (lambda c, tmp: changed(c, general__temp_device="disk"), "general.temp_device"),
    "an average that is never updated": (
        lambda c, tmp: changed(c, training__ema__mode="train_device", training__ema__update_every_steps=900),
        "training.ema.update_every_steps"),
    "a fine-tune's folder that is a file": (
        lambda c, tmp: changed(c, training__trains="full", output__model_format="diffusers"), "output.destination"),
    "no embedding": (lambda c, tmp: changed(c, training__trains="embedding"), "embeddings.words"),
    "embeddings of a family without any": (
        lambda c, tmp: changed(c, model__family="z_image", training__trains="embedding"), "training.trains"),
    "another model of OneTrainer's": (from_onetrainer, "model.family"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_each_error_is_reported_with_its_field_and_advice(config: Config, tmp_path: Path, name: str) -> None:
    apply, path = BROKEN[name]
    broken = apply(config, tmp_path)
    report = check(broken)
    named = [p for p in report.errors if p.path == path]
    assert named, [str(p) for p in report.problems]
    assert all(p.advice for p in report.errors)
    for problem in report.problems:
        assert problem.message.endswith(".")
        assert len(problem.message) < 500
        if problem.path:
            get_path(broken, problem.path)


def test_all_errors_are_reported_at_once(config: Config, tmp_path: Path) -> None:
    """A concept whose folder is missing used to hide those that are empty."""
    (tmp_path / "empty").mkdir()
    draw_image(64, 64, 0).save(tmp_path / "empty" / "._x.png")
    (tmp_path / "file").write_text("")
    broken = changed(
        config,
        concepts=[
            {"path": str(tmp_path / "nowhere")},
            {"path": str(tmp_path / "empty")},
            {"path": ""},
            {"path": str(tmp_path / "nowhere"), "enabled": False},
            {"path": str(config.concepts[0].path), "repeats": 0},
        ],
        output__destination=str(tmp_path),
        general__workspace_dir=str(tmp_path / "file"),
        general__cache_dir="",
        model__base_model="nothing",
        parts__unet__train=False,
        parts__text_encoder__learning_rate=0.0,
        data__bucket_step_px=12,
        validation__every={"n": 1, "unit": "epoch"},
    )
    report = check(broken)
    assert sorted(errors(report)) == [
        "concepts", "concepts.0.path", "concepts.1.path", "concepts.2.path",
        "data.bucket_step_px", "general.cache_dir", "general.workspace_dir", "model.base_model", "output.destination",
        "parts.text_encoder.learning_rate", "validation.every",
    ]  # fmt: skip
    assert report.preview is None
    assert any("._x.png" in p.message for p in report.problems), "skipped files are reported too"


@few
@given(data=st.data())
def test_any_text_in_any_path_can_be_checked(
    tmp_path_factory: pytest.TempPathFactory, images: Path, data: st.DataObject
) -> None:
    """A name too long for the system used to raise during the check."""
    folder = tmp_path_factory.mktemp("any")
    config = small_config(folder, model=write_model(folder / "model"), images=images)
    texts = st.text(max_size=12).map(lambda t: str(folder / t.replace("..", "").strip("/"))) | odd_texts.filter(
        lambda t: ".." not in t
    )
    for path in ("model.base_model", "concepts.0.path", "output.destination"):
        config, problems = set_path(config, path, data.draw(texts))
        assert problems == []
    assert isinstance(check(config), Report)


def test_the_rules_alone_read_no_file() -> None:
    assert {p.path for p in problems_of(Config())} == {"concepts", "sampling.prompts"}


def test_an_oft_on_a_layer_with_one_output_is_refused_from_the_layers_shapes(config: Config) -> None:
    """The projector of Krea 2's text layers."""
    krea2 = changed(config, model__family="krea2", model__base_model="krea/Krea-2-Raw", adapter="oft")
    krea2 = changed(krea2, adapter__layers="all")
    [problem] = [p for p in check(krea2).errors if p.path == "adapter.layers"]
    assert problem.message == "OFT cannot rotate the outputs of layers with 1 output: no block size divides them."
    inputs = changed(krea2, adapter__rotates="inputs")
    assert "adapter.layers" not in errors(check(inputs))
