"""What is wrong with a run is told before it starts: each fault by its field, all faults at once."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from modules.config.codec import decode
from modules.config.edit import get_path, set_path
from modules.config.rules import problems_of
from modules.config.schema import Config
from tests.builders.configs import small_config
from tests.builders.pictures import draw_folder, draw_picture
from tests.unit.strategies import few, odd_texts
from trainer import preflight
from trainer.preflight import Report, check, plans, plans_of


def write_model(folder: Path, **index: Any) -> Path:
    """Write what the check looks at of a model in diffusers layout."""
    folder.mkdir(parents=True)
    (folder / "model_index.json").write_text(json.dumps({"_class_name": "StableDiffusionPipeline", **index}))
    for part in ("unet", "vae", "text_encoder"):
        (folder / part).mkdir()
        (folder / part / "config.json").write_text("{}")
    return folder


@pytest.fixture
def config(tmp_path: Path, pictures: Path) -> Config:
    """A run that could start."""
    return small_config(tmp_path, model=write_model(tmp_path / "model"), pictures=pictures)


def changed(config: Config, **changes: Any) -> Config:
    for path, value in changes.items():
        config, problems = set_path(config, path.replace("__", "."), value)
        assert problems == []
    return config


def errors(report: Report) -> list[str]:
    return [p.path for p in report.errors]


def test_a_run_that_can_start(config: Config) -> None:
    report = check(config)
    assert report.errors == []
    assert report.preview is not None


# -- a table of broken setups: what is done to it, and the field that is named

Break = Callable[[Config, Path], Config]


def at_output(name: str) -> Break:
    return lambda config, tmp: changed(config, output__destination=str(tmp / name))


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


def base_model(name: str) -> Break:
    return lambda config, tmp: changed(config, model__base_model=name.replace("TMP", str(tmp)))


def model_is_a_file(config: Config, tmp: Path) -> Config:
    (tmp / "model.safetensors").write_bytes(b"x")
    return changed(config, model__base_model=str(tmp / "model.safetensors"))


def concept(**changes: Any) -> Break:
    def apply(config: Config, tmp: Path) -> Config:
        changes_here = {k: v.replace("TMP", str(tmp)) if isinstance(v, str) else v for k, v in changes.items()}
        return changed(config, **{f"concepts__0__{k}": v for k, v in changes_here.items()})

    return apply


def empty_concept(config: Config, tmp: Path) -> Config:
    (tmp / "empty").mkdir()
    return concept(path="TMP/empty")(config, tmp)


def concept_of_broken_files(config: Config, tmp: Path) -> Config:
    (tmp / "broken").mkdir()
    (tmp / "broken" / "a.png").write_bytes(b"")
    (tmp / "broken" / "b.jpg").write_text("<html>")
    return concept(path="TMP/broken")(config, tmp)


def pictures_only_below(config: Config, tmp: Path) -> Config:
    draw_folder(tmp / "above" / "below", sizes=[(64, 64)])
    return concept(path="TMP/above")(config, tmp)


def concept_is_a_file(config: Config, tmp: Path) -> Config:
    draw_picture(8, 8, 0).save(tmp / "picture.png")
    return concept(path="TMP/picture.png")(config, tmp)


def nothing_trained(config: Config, tmp: Path) -> Config:
    return changed(config, parts__unet__train=False, parts__text_encoder__train=False)


def seldom_shown(config: Config, tmp: Path) -> Config:
    return changed(config, concepts__0__repeats=0.1, training__epochs=20)


def from_onetrainer(config: Config, tmp: Path) -> Config:
    theirs = decode({"training_method": "LORA", "model_type": "FLUX_DEV_1"}).config
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
    "base model not there": (base_model("TMP/nowhere"), "model.base_model"),
    "base model of a name alone": (base_model("sd15"), "model.base_model"),
    "base model of a Windows path": (base_model("C:\\models\\sd15"), "model.base_model"),
    "base model of a drive": (base_model("C:/sd15"), "model.base_model"),
    "base model of a sentence": (base_model("a photo of / a cat"), "model.base_model"),
    "base model of a long text": (base_model("x" * 5000), "model.base_model"),
    "base model of nobody's home": (base_model("~no such user/model"), "model.base_model"),
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
    "concept without a folder": (concept(path=" "), "concepts.0.path"),
    "concept not there": (concept(path="TMP/nowhere"), "concepts.0.path"),
    "concept is a file": (concept_is_a_file, "concepts.0.path"),
    "concept of nobody's home": (concept(path="~no such user/x"), "concepts.0.path"),
    "concept of a long text": (concept(path="x" * 5000), "concepts.0.path"),
    "concept with a NUL": (concept(path="a\x00b"), "concepts.0.path"),
    "concept is empty": (empty_concept, "concepts.0.path"),
    "concept of broken files": (concept_of_broken_files, "concepts.0.path"),
    "pictures only in sub-folders": (pictures_only_below, "concepts.0.path"),
    "no concept": (lambda c, tmp: changed(c, concepts=[]), "concepts"),
    "all concepts disabled": (concept(enabled=False), "concepts"),
    "only a validation concept": (concept(kind="validation"), "concepts"),
    "no repeats": (concept(repeats=0.0), "concepts"),
    "epochs without a picture": (seldom_shown, "concepts"),
    "validation without a concept": (
        lambda c, tmp: changed(c, validation__every={"n": 1, "unit": "epoch"}), "validation.every"),
    "nothing trained": (nothing_trained, "parts.unet.train"),
    "learning rate 0": (lambda c, tmp: changed(c, training__learning_rate=0.0), "parts.unet.learning_rate"),
    "a part's learning rate 0": (
        lambda c, tmp: changed(c, parts__text_encoder__learning_rate=0.0), "parts.text_encoder.learning_rate"),
    "no layers named": (lambda c, tmp: changed(c, adapter__layers="custom"), "adapter.custom_layers"),
    "only commas named": (
        lambda c, tmp: changed(c, adapter__layers="custom", adapter__custom_layers=" , ,"), "adapter.custom_layers"),
    "size step of no use": (lambda c, tmp: changed(c, data__bucket_step_px=12), "data.bucket_step_px"),
    "a fine-tune's folder that is a file": (
        lambda c, tmp: changed(c, training__trains="full", output__model_format="diffusers"), "output.destination"),
    "embedding": (lambda c, tmp: changed(c, training__trains="embedding"), "training.trains"),
    "another model of OneTrainer's": (from_onetrainer, "model.family"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_each_fault_is_told_by_its_field_with_what_to_do(config: Config, tmp_path: Path, name: str) -> None:
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


def test_all_faults_are_told_at_once(config: Config, tmp_path: Path) -> None:
    """A concept whose folder is missing used to hide those that are empty."""
    (tmp_path / "empty").mkdir()
    draw_picture(64, 64, 0).save(tmp_path / "empty" / "._x.png")
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
        adapter__layers="custom",
        data__bucket_step_px=12,
        validation__every={"n": 1, "unit": "epoch"},
        training__trains="vae",
    )
    report = check(broken)
    assert sorted(errors(report)) == [
        "adapter.custom_layers", "concepts", "concepts.0.path", "concepts.1.path", "concepts.2.path",
        "data.bucket_step_px", "general.cache_dir", "general.workspace_dir", "model.base_model", "output.destination",
        "parts.text_encoder.learning_rate", "training.trains", "validation.every",
    ]  # fmt: skip
    assert report.preview is None
    assert any("._x.png" in p.message for p in report.problems), "what was passed over is told, too"


# -- what is no fault


def nothing(config: Config, tmp: Path) -> Config:
    return config


def disabled_with_a_bad_path(config: Config, tmp: Path) -> Config:
    more = [{"path": "/nowhere/at all", "enabled": False}, {"path": "", "enabled": False, "kind": "validation"}]
    return changed(config, concepts=[config.concepts[0].model_dump(), *more])


def frozen_with_a_rate_of_0(config: Config, tmp: Path) -> Config:
    return changed(config, parts__text_encoder__train=False, parts__text_encoder__learning_rate=0.0)


def own_rates(config: Config, tmp: Path) -> Config:
    own = {f"parts__{name}__learning_rate": 1e-4 for name in ("unet", "text_encoder")}
    return changed(config, training__learning_rate=0.0, **own)


FINE: dict[str, Break] = {
    "as it is": nothing,
    "a disabled concept with a bad path": disabled_with_a_bad_path,
    "a frozen part with a rate of 0": frozen_with_a_rate_of_0,
    "rates of the parts' own": own_rates,
    "a model of a repository": base_model("stable-diffusion-v1-5/stable-diffusion-v1-5"),
    "folders that are not there yet": at_output("a/b/c/lora.safetensors"),
    "validation with a concept": lambda c, tmp: changed(
        c, concepts=[*(k.model_dump() for k in c.concepts), {"path": c.concepts[0].path, "kind": "validation"}],
        validation__every={"n": 1, "unit": "epoch"}),
    "a path with spaces and letters": lambda c, tmp: changed(
        c, concepts__0__path=str(draw_folder(tmp / "moje obrázky 猫", sizes=[(64, 64)]))),
    "half the pictures each epoch": concept(repeats=0.5),
}  # fmt: skip


@pytest.mark.parametrize("name", FINE)
def test_what_is_no_fault_passes(config: Config, tmp_path: Path, name: str) -> None:
    report = check(FINE[name](config, tmp_path))
    assert report.errors == []
    assert report.preview is not None


def test_the_check_leaves_nothing_behind(config: Config, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    check(config)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_file_that_will_be_replaced_is_mentioned(config: Config) -> None:
    destination = Path(config.output.destination)
    destination.parent.mkdir()
    destination.write_bytes(b"precious")
    report = check(config)
    assert [(p.path, p.severity) for p in report.problems] == [("output.destination", "info")]
    assert destination.read_bytes() == b"precious"


def test_folders_that_may_not_be_written_or_looked_at(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulated: who runs the tests may be root, who may everything."""
    real_write = Path.write_bytes

    def refuse(self: Path, content: bytes) -> int:
        if ".darkroom-probe" in self.name:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return real_write(self, content)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", refuse)
        report = check(config)
    assert errors(report) == ["general.workspace_dir", "general.cache_dir", "output.destination"]
    assert all("Read-only file system" in p.message for p in report.errors)

    real_stat = Path.stat

    def closed(self: Path, **kwargs: bool) -> os.stat_result:
        if self.name in ("workspace", "lora.safetensors"):
            raise PermissionError(errno.EACCES, "Permission denied", str(self))
        return real_stat(self, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", closed)
        report = check(config)
    assert errors(report) == ["general.workspace_dir", "output.destination"]


def test_a_concept_that_may_not_be_read(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda path, mode: False)
        assert errors(check(config)) == ["concepts.0.path"]

    def vanish(*args: object) -> None:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", "pictures")

    with monkeypatch.context() as patch:
        patch.setattr(plans, "build_dataset", vanish)
        report = check(config)
    assert errors(report) == ["concepts"]
    assert report.preview is None


@few
@given(data=st.data())
def test_any_text_in_any_path_can_be_checked(
    tmp_path_factory: pytest.TempPathFactory, pictures: Path, data: st.DataObject
) -> None:
    """A name too long for the system used to raise in the midst of the check."""
    folder = tmp_path_factory.mktemp("any")
    config = small_config(folder, model=write_model(folder / "model"), pictures=pictures)
    texts = st.text(max_size=12).map(lambda t: str(folder / t.replace("..", "").strip("/"))) | odd_texts.filter(
        lambda t: ".." not in t
    )
    for path in ("model.base_model", "concepts.0.path", "output.destination"):
        config, problems = set_path(config, path, data.draw(texts))
        assert problems == []
    assert isinstance(check(config), Report)


# -- warnings


@pytest.mark.parametrize(
    ("changes", "path", "severity"),
    [
        ({"data__resolution_px": [100], "data__bucket_step_px": 64}, "data.resolution_px", "warning"),
        ({"data__resolution_px": [64, 72]}, "data.resolution_px", "warning"),
        ({"training__learning_rate": 1.0}, "training.learning_rate", "warning"),
        ({"sampling__at_start": True}, "sampling.prompts", "info"),
        ({"sampling__every": {"n": 1, "unit": "epoch"}}, "sampling.prompts", "info"),
        ({"parts__unet__stop_after": {"n": 2, "unit": "epoch"}}, "parts.unet.stop_after", "info"),
    ],
)
def test_what_is_odd_but_can_run(config: Config, changes: dict[str, Any], path: str, severity: str) -> None:
    report = check(changed(config, **changes))
    assert [(p.path, p.severity) for p in report.problems] == [(path, severity)]


def test_a_concept_that_is_never_shown_is_a_warning_beside_others(config: Config) -> None:
    both = changed(config, concepts=[config.concepts[0].model_dump(), {"path": config.concepts[0].path, "repeats": 0}])
    report = check(both)
    assert [(p.path, p.severity) for p in report.problems] == [("concepts.1.repeats", "warning")]


def test_pictures_without_captions_and_files_passed_over_are_counted(config: Config, tmp_path: Path) -> None:
    folder = draw_folder(tmp_path / "more", sizes=[(64, 64)] * 3)
    (folder / "001.txt").unlink()
    (folder / "empty.png").write_bytes(b"")
    Image.new("RGB", (8, 8)).save(folder / "._002.png")
    report = check(changed(config, concepts__0__path=str(folder)))
    messages = [p.message for p in report.problems if p.severity == "warning"]
    assert messages == [
        "2 files are passed over; the first is ._002.png: a hidden file.",
        "1 pictures have no caption and are learned without one.",
    ]
    assert report.preview is not None
    assert report.preview.num_without_caption == 1
    assert dict(report.preview.skipped) == {
        str(folder / "._002.png"): "a hidden file",
        str(folder / "empty.png"): "an empty file",
    }


# -- the preview


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"training__batch_size": 3, "training__accumulation_steps": 2},
        {"concepts__0__repeats": 1.5, "training__epochs": 7},
        {"concepts__0__repeats": 0.7, "data__resolution_px": [64, 96], "training__epochs": 9},
        {"data__bucket_step_px": 16, "training__batch_size": 2},
        {"data__aspect_buckets": False},
    ],
    ids=str,
)
def test_the_numbers_shown_are_those_that_happen(config: Config, changes: dict[str, Any]) -> None:
    config = changed(config, **changes)
    preview = check(config).preview
    assert preview is not None
    training, _ = preflight.datasets_of(config)
    steps = [len(plans_of(config, training).windows(e)) for e in range(config.training.epochs)]
    assert preview.steps_first_epoch == steps[0]
    assert preview.total_steps == sum(steps)
    assert preview.num_pictures == 5
    assert sum(count for _, count in preview.buckets) == 5 * len(config.data.resolution_px)


def test_the_preview_counts_both_kinds_of_pictures(config: Config) -> None:
    both = changed(config, concepts=[{"path": config.concepts[0].path, "kind": k} for k in ("training", "validation")])
    preview = check(both).preview
    assert preview is not None
    assert (preview.num_pictures, preview.num_validation_pictures) == (5, 5)


def test_the_rules_alone_look_at_no_file() -> None:
    assert {p.path for p in problems_of(Config())} == {"concepts", "sampling.prompts"}


# -- families


def sdxl(config: Config, tmp: Path, **scheduler: Any) -> Config:
    model = write_model(tmp / "sdxl", _class_name="StableDiffusionXLPipeline")
    for name, file, content in (("text_encoder_2", "config", {}), ("scheduler", "scheduler_config", scheduler)):
        (model / name).mkdir()
        (model / name / f"{file}.json").write_text(json.dumps(content))
    return changed(config, model__family="sdxl", model__base_model=str(model))


def test_each_family_wants_its_own_models(config: Config, tmp_path: Path) -> None:
    fitting = sdxl(config, tmp_path)
    assert check(fitting).errors == []
    [problem] = check(changed(fitting, model__family="sd")).errors
    assert (problem.path, problem.advice) == ("model.base_model", "Set the model family to Stable Diffusion XL.")
    [problem] = check(changed(config, model__family="sdxl")).errors
    assert "not Stable Diffusion XL" in problem.message


def test_all_parts_of_the_family_are_wanted(config: Config, tmp_path: Path) -> None:
    broken = sdxl(config, tmp_path)
    (tmp_path / "sdxl" / "text_encoder_2" / "config.json").unlink()
    assert ["text_encoder_2" in p.message for p in check(broken).errors] == [True]


def test_epsilon_with_zero_snr_is_refused_beforehand(config: Config, tmp_path: Path) -> None:
    [problem] = check(sdxl(config, tmp_path, rescale_betas_zero_snr=True)).errors
    assert "zero terminal SNR" in problem.message


def test_a_vae_that_overflows_is_told(config: Config, tmp_path: Path) -> None:
    report = check(changed(sdxl(config, tmp_path), parts={"vae": {"dtype": "float16"}}))
    assert [(p.path, p.severity) for p in report.problems if p.path == "parts.vae.dtype"] == [
        ("parts.vae.dtype", "info")
    ]
