"""Qwen-Image-Edit: training with captions that the text encoder reads together with reference images."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import Qwen2_5_VLForConditionalGeneration

from modules.config.codec import decode
from modules.config.imports.ai_toolkit import tree_of_ai_toolkit
from modules.config.imports.kohya_settings import tree_of_kohya
from modules.config.rules import problems_of
from modules.config.schema import Config
from modules.data.buckets import Size
from modules.data.cache.digests import DigestIndex
from modules.data.image_settings import CONDITIONING_FOLDERS
from modules.estimate.architecture import architecture_of
from modules.estimate.recordings import shipped_file
from modules.families.kinds.identify import identify
from modules.families.qwen_image.files import ZERO_TIME_MARK
from modules.families.qwen_image.model import QwenImage
from modules.families.registry import FAMILIES, files_of
from modules.formats.headers import read_header
from modules.quantization.linear import QuantizedLinear
from modules.settings.edit import choose_variant
from modules.system.errors import DarkroomError
from tests.builders.configs import laid_over
from tests.builders.pipelines import load_tiny
from tests.builders.preference import NEEDED
from tests.builders.qwen_image import write_qwen_edit_folder
from tests.builders.references import referenced_config
from tests.builders.runs import assert_equal_tensors, losses, run
from trainer.data.datasets import datasets_of
from trainer.events import BackupSaved, CacheFilled, RunFailed, SampleReady, ValidationFinished, WarningRaised
from trainer.preflight import check
from trainer.preflight.estimates import num_cached_captions
from trainer.preflight.run_budget import memory_estimate
from trainer.run.prune import unused_by

PROMPT = {"prompt": "a disc", "width_px": 64, "height_px": 64, "steps": 2, "guidance": 2.5, "sampler": "euler"}


@pytest.fixture(scope="module")
def edit_2511(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Path:
    return write_qwen_edit_folder(tmp_path_factory.mktemp("qwen") / "Qwen-Image-Edit-2511", zero_cond_t=True)


@pytest.fixture
def config(edit_2511: Path, tmp_path: Path) -> Config:
    return referenced_config(tmp_path, edit_2511, {})


def filled(ran: Any, what: str) -> list[tuple[int, int]]:
    """The entries of caches, of the training and the validation images: how many, and how many were there before."""
    return [(event.num_entries, event.num_found) for event in ran.of(CacheFilled) if event.what == what]


def test_it_trains_caches_validates_samples_and_resumes(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """Captions are encoded once with the references of each image, and again with those that have changed."""
    concept, folder = config.concepts[0].model_dump(), Path(config.concepts[0].path).parent
    references = {"reference_image": str(folder / "before" / "0.png")}
    sections: dict[str, Any] = {
        "concepts": [concept, {**concept, "kind": "validation"}],
        "data": {"caption_dropout": 0.4},
        "parts": {"transformer": {"checkpointing": "block"}},
        "sampling": {"at_end": True, "prompts": [{**PROMPT, **references}]},
        "validation": {"every": {"n": 1, "unit": "epoch"}},
        "backup": {"every": {"n": 1, "unit": "step"}, "keep": 0},
    }
    config = laid_over(config, sections)
    assert not [p for p in check(config).problems if p.severity == "error" or (p.path == "model.variant" and p.remedy)]
    ran = run(config)
    assert ran.finished.outcome == "finished"
    assert ran.of(SampleReady)
    assert ran.of(ValidationFinished)
    # Six images have the same caption; with dropout also the empty one of each. And the empty one alone.
    assert filled(ran, "captions") == [(13, 0), (7, 7)]
    datasets = datasets_of(config)
    assert num_cached_captions(config, datasets.training, datasets.validation) == 12
    assert not unused_by([config]).entries
    resumed = run(config, resume_from=Path(ran.of(BackupSaved)[0].path))
    assert_equal_tensors(resumed.weights, ran.weights)

    never = {"backup": {"every": {"unit": "never"}}, "sampling": {"at_end": False, "prompts": []}}
    plain = laid_over(config, {**never, "parts": {"transformer": {"checkpointing": "off"}}})
    fresh = laid_over(plain, {"data": {"latent_cache": False, "text_cache": False}})
    with monkeypatch.context() as patch:
        patch.delattr(DigestIndex, "digests")  # no cache needs one, and to read all files may take hours
        assert losses(run(fresh)) == losses(ran)

    changed = folder / "before" / "0.png"
    Image.open(changed).transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(changed)
    read = list[Path]()
    digest = DigestIndex._read
    monkeypatch.setattr(
        DigestIndex, "_read", lambda index, path, *facts: read.append(path) or digest(index, path, *facts)
    )
    again = run(laid_over(plain, {"data": {"verify_cache": True}}))
    assert read.count(changed) == 2  # once for the training and once for the validation images
    assert filled(again, "captions") == [(13, 11), (7, 7)]
    assert losses(again) != losses(ran)


def test_a_damaged_reference_is_named(config: Config) -> None:
    """With its folder: captions are encoded before references are, and it was a file that "could not be read"."""
    damaged = Path(config.concepts[0].path).parent / "garment" / "2.png"
    content = damaged.read_bytes()
    damaged.write_bytes(content[:60] + bytes(60) + content[120:])
    failure = run(config).ending
    assert isinstance(failure, RunFailed)
    assert failure.message.startswith(f"The reference image {damaged} cannot be decoded (")
    assert failure.advice == "Repair the file, or remove it together with its image."
    assert not failure.is_crash


def test_the_folder_of_a_fine_tune_is_one_of_diffusers(config: Config, edit_2511: Path) -> None:
    """With its vision encoder and the processor."""
    output = {"destination": str(Path(config.general.workspace_dir) / "out"), "model_format": "diffusers"}
    ran = run(laid_over(config, {"training": {"trains": "full"}, "output": output}))
    folder = Path(ran.finished.model_path)
    assert identify(folder).variant == "edit"
    index = json.loads((folder / "model_index.json").read_text())
    assert index["_class_name"] == "QwenImageEditPlusPipeline"
    assert (folder / "processor" / "preprocessor_config.json").is_file()
    encoder, info = Qwen2_5_VLForConditionalGeneration.from_pretrained(
        folder / "text_encoder", local_files_only=True, output_loading_info=True
    )
    assert not {name for name in info["missing_keys"] if name != "lm_head.weight"}
    theirs = load_tiny(edit_2511, "qwen_image", variant="edit").modules["text_encoder"].state_dict()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in encoder.model.state_dict().items())


@pytest.mark.parametrize("start", ["model.", "model.language_model."])
def test_the_text_encoder_of_a_file_needs_its_vision_encoder(edit_2511: Path, tmp_path: Path, start: str) -> None:
    stored = load_file(edit_2511 / "text_encoder" / "model.safetensors")
    whole = {re.sub(r"^model\.(language_model\.)?", start, name): tensor for name, tensor in stored.items()}
    file = tmp_path / "qwen_2.5_vl_7b.safetensors"
    save_file(whole, file)
    read, own = (
        load_tiny(edit_2511, "qwen_image", variant="edit", **files).modules["text_encoder"].state_dict()
        for files in ({"part_files": {"text_encoder": str(file)}}, {})
    )
    assert read.keys() == own.keys()
    assert all(torch.equal(tensor, own[name]) for name, tensor in read.items())
    save_file({name: tensor for name, tensor in whole.items() if "visual." not in name}, file)
    with pytest.raises(DarkroomError, match="has no vision encoder"):
        load_tiny(edit_2511, "qwen_image", variant="edit", part_files={"text_encoder": str(file)})


def test_a_model_without_references_is_told_so(config: Config, tmp_path: Path) -> None:
    """Images without any are an error, samples without any a warning; the first model reads one folder."""
    concept = config.concepts[0].model_dump()
    without = {**concept, "image": {**concept["image"], **dict.fromkeys(CONDITIONING_FOLDERS, "")}}
    prompts = {"prompts": [PROMPT]}
    problems = check(laid_over(config, {"concepts": [without], "sampling": prompts})).problems
    assert any("no reference image" in p.message and p.severity == "error" for p in problems)
    assert any("Sample 1 has no reference image" in p.message and p.severity == "warning" for p in problems)
    first = write_qwen_edit_folder(tmp_path / "Qwen-Image-Edit", is_plus=False)
    only_one = laid_over(config, {"model": {"base_model": str(first), "variant": "edit_one"}})
    assert any("of which the model reads 1" in p.message for p in check(only_one).problems)
    wrong = check(laid_over(config, {"model": {"base_model": str(first)}})).problems
    assert [p.remedy for p in wrong if p.path == "model.variant" and p.severity == "error"] == ["variant"]


@pytest.mark.parametrize(
    ("arch", "variant"), [("qwen_image_edit", "edit_one"), ("qwen_image_edit_plus:2511", "edit"), ("qwen_image", "")]
)
def test_a_config_of_ai_toolkit_names_the_model(arch: str, variant: str) -> None:
    process = {"type": "diffusion_trainer", "model": {"name_or_path": "some/model", "arch": arch}}
    tree = tree_of_ai_toolkit({"job": "extension", "config": {"name": "x", "process": [process]}}, [])
    config = decode(tree).config
    assert (config.family.name, config.model.variant) == ("qwen_image", variant or "text_to_image")


@pytest.mark.parametrize(
    ("given", "variant"),
    [
        ({"model_version": "edit-2511"}, "edit"),
        ({"model_version": "edit"}, "edit_one"),
        ({"model_version": "original"}, "text_to_image"),
        ({"edit_plus": True}, "edit"),
        ({"edit": True}, "edit_one"),
    ],
)
def test_settings_of_musubi_tuner_name_the_model(given: dict[str, Any], variant: str) -> None:
    tree = tree_of_kohya({"network_module": "networks.lora_qwen_image", "dit": "x.safetensors", **given}, [])
    assert decode(tree).config.model.variant == variant


@pytest.mark.parametrize(
    ("name", "variant"),
    [
        ("Qwen/Qwen-Image-Edit-2511", "edit"),
        ("qwen_image_edit_2509_fp8_e4m3fn.safetensors", "edit"),
        ("Qwen/Qwen-Image-Edit", "edit_one"),
        ("Qwen/Qwen-Image-2512", ""),
    ],
)
def test_a_name_shows_the_variant(name: str, variant: str) -> None:
    assert files_of("qwen_image").variant_named(name) == variant


PLAIN = {"data": {"text_cache": False}}


@pytest.mark.full
@pytest.mark.parametrize(
    "parts",
    [
        {"text_encoder": {"offload_fraction": 0.5}},
        {"transformer": {"checkpointing": "whole"}},
        {"transformer": {"checkpointing": "block", "offload_activations": True}},
        {"transformer": {"checkpointing": "block", "offload_fraction": 0.5}},
        {"transformer": {"checkpointing": "auto"}},
    ],
    ids=str,
)
def test_what_saves_memory_changes_no_loss(config: Config, parts: dict[str, Any]) -> None:
    """Captions are encoded in each step."""
    plain, saving = (run(laid_over(config, {**PLAIN, "parts": given})) for given in ({}, parts))
    assert losses(saving) == losses(plain)


@pytest.mark.parametrize("dtype", ["int8", *(pytest.param(d, marks=pytest.mark.full) for d in ("nfloat4", "float8"))])
def test_the_language_model_alone_is_quantized(config: Config, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read = list[set[str]]()
    encode = QwenImage.encode_with_images

    def watched(family: QwenImage, *args: Any) -> Any:
        modules = family.modules["text_encoder"].named_modules()
        read.append({name.partition(".")[0] for name, module in modules if isinstance(module, QuantizedLinear)})
        return encode(family, *args)

    monkeypatch.setattr(QwenImage, "encode_with_images", watched)
    assert run(laid_over(config, {"parts": {"text_encoder": {"dtype": dtype}}})).finished.outcome == "finished"
    assert read[0] == {"language_model"}


def test_the_estimate_counts_the_vision_encoder_and_the_tokens_of_references() -> None:
    """In the published size: 1.4 GB of weights, and one reference of the image's size."""
    parts = {"transformer": {"dtype": "int8", "checkpointing": "block"}, "text_encoder": {"dtype": "int8"}}
    tree = {"darkroom_version": 7, "parts": parts, "training": {"precision": "bfloat16"}}
    model = {"family": "qwen_image", "base_model": "Qwen/Qwen-Image-Edit-2511"}
    plain, edit = (
        memory_estimate(decode({**tree, "model": {**model, "variant": variant}}).config, {Size(1024, 1024): 10})
        for variant in ("text_to_image", "edit")
    )
    assert plain is not None
    assert edit is not None
    encoding, training = (
        edit.phase(name).total_bytes - plain.phase(name).total_bytes for name in ("encoding captions", "training")
    )
    assert 1.3e9 < encoding < 1.7e9
    assert training > 0.5e9


def test_a_2511_named_by_its_repository_is_estimated_as_it_is() -> None:
    """With the modulation of its references, which 2509 does not have, from recordings that ship."""
    names = ("Qwen/Qwen-Image-Edit-2511", "someone/qwen_image_edit_2511-tuned", "Qwen/Qwen-Image-Edit-2509")
    found = [architecture_of(name, "qwen_image", "edit") for name in names]
    configs = [architecture.configs for architecture in found if architecture is not None]
    assert [bool(config["transformer"].get("zero_cond_t")) for config in configs] == [True, True, False]
    spec = FAMILIES["qwen_image"].of_variant("edit")
    assert all(shipped_file(spec, spec.denoiser, config["transformer"]).is_file() for config in configs)


@pytest.mark.full
def test_a_single_file_of_2511_has_its_mark(config: Config, edit_2511: Path, tiny_qwen_image: Path) -> None:
    """By which it is read as 2511, also in place of the transformer of another model."""
    output = {"destination": str(Path(config.general.workspace_dir) / "out.safetensors"), "model_format": "single_file"}
    file = Path(run(laid_over(config, {"training": {"trains": "full"}, "output": output})).finished.model_path)
    assert any(name.endswith(ZERO_TIME_MARK) for name in read_header(file).tensors)
    read = load_tiny(tiny_qwen_image, "qwen_image", part_files={"transformer": str(file)})
    assert read.denoiser.config.zero_cond_t


@pytest.mark.full
@pytest.mark.parametrize("adapter", ["lora", "lokr", "oft"])
def test_adapters_are_trained_and_read_again(config: Config, edit_2511: Path, adapter: str) -> None:
    """A run starts from the file of another one, and its names are those of Qwen-Image."""
    config, _ = choose_variant(config, "adapter", adapter)
    file = Path(run(config).finished.model_path)
    assert identify(file).family == "qwen_image"
    assert run(laid_over(config, {"adapter": {"start_from": str(file)}})).finished.outcome == "finished"


@pytest.mark.full
@pytest.mark.parametrize("has_latents", [True, False])
def test_mirrored_references_have_entries_of_their_own(config: Config, has_latents: bool) -> None:
    """No caption is encoded again in training; the caption of each image is read with both, if both may occur."""
    image = {**config.concepts[0].model_dump()["image"], "flip": "random"}
    concept = {**config.concepts[0].model_dump(), "image": image, "image_variations": 4}
    sections = {"concepts": [concept], "data": {"latent_cache": has_latents, "text_cache": True}}
    ran = run(laid_over(config, {**sections, "training": {"epochs": 3}}))
    assert ran.finished.outcome == "finished"
    assert not [w for w in ran.of(WarningRaised) if "damaged" in w.message]
    [(num_entries, _)] = filled(ran, "captions")
    datasets = datasets_of(laid_over(config, sections))
    assert num_cached_captions(laid_over(config, sections), datasets.training, datasets.validation) == 12
    assert 7 < num_entries <= 13
    assert has_latents or num_entries == 13


@pytest.mark.full
@pytest.mark.parametrize("method", sorted(NEEDED))
def test_every_method_of_samples_and_pairs_is_refused(config: Config, method: str) -> None:
    """So none of them can train nothing under checkpointing."""
    settings = {"method": {"name": method}}
    assert "training.method" in {p.path for p in problems_of(laid_over(config, {"training": settings}))}
