"""The verbs inspect and convert, as a user types them: every form into every other, and back to the same weights."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest
import torch
from diffusers import StableDiffusionPipeline, StableDiffusionXLPipeline
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from modules.families.kinds.identify import identify
from modules.families.parts.lora_names import kohya_naming
from modules.families.parts.single_file.models import shipped_configs
from modules.families.registry import published_model
from modules.formats.adapter_layers import AdapterLayer, lora_layer
from modules.formats.adapter_names import DOWN, UP
from modules.formats.lora_files import to_kohya
from tests.builders.single_files import write_tiny
from trainer.__main__ import main
from trainer.run_folder.result import copy_model

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is typed counts from the test's own folder."""
    monkeypatch.setenv("DARKROOM_CALLER_DIR", str(tmp_path))


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors of a diffusers folder, by part and name."""
    return {
        f"{file.parent.name}/{name}": tensor
        for file in sorted(folder.rglob("*.safetensors"))
        for name, tensor in load_file(file).items()
    }


def same(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> bool:
    return ours.keys() == theirs.keys() and all(torch.equal(t, theirs[n]) for n, t in ours.items())


@pytest.mark.parametrize("model", ["sd1", "sd2_v", "sdxl"])
def test_there_and_back_is_the_same(model: str, tmp_path: Path) -> None:
    prediction = "v_prediction" if model == "sd2_v" else "epsilon"
    parts = write_tiny(tmp_path / "a.safetensors", model, prediction=prediction)
    assert main(["convert", "a.safetensors", "folder"]) == 0
    assert main(["convert", "folder", "b.safetensors"]) == 0
    assert same(load_file(tmp_path / "a.safetensors"), load_file(tmp_path / "b.safetensors"))
    assert main(["convert", "b.safetensors", "again"]) == 0
    assert same(weights(tmp_path / "folder"), weights(tmp_path / "again"))
    found = identify(tmp_path / "folder")
    assert (found.model, found.prediction) == (model, prediction)
    kind = StableDiffusionXLPipeline if model == "sdxl" else StableDiffusionPipeline
    pipe = kind.from_pretrained(tmp_path / "folder", local_files_only=True)
    for name, module in parts.items():
        assert same(module.state_dict(), getattr(pipe, name).state_dict())
    assert pipe.tokenizer("a cat").input_ids == [49406, 320, 2368, 49407]
    assert pipe.scheduler.config.prediction_type == prediction


def test_a_folder_of_ours_becomes_a_file_and_again_a_folder(tiny_sd: Path, tmp_path: Path) -> None:
    assert main(["convert", str(tiny_sd), "one.safetensors"]) == 0
    assert main(["convert", "one.safetensors", "folder"]) == 0
    prefixed = {
        n if not n.startswith("text_encoder/") else n.replace("/", "/text_model."): t
        for n, t in weights(tiny_sd).items()
    }
    assert same(prefixed, weights(tmp_path / "folder"))


def test_a_pickled_checkpoint_and_its_averaged_weights(tmp_path: Path) -> None:
    write_tiny(tmp_path / "a.safetensors", "sd1")
    with safe_open(tmp_path / "a.safetensors", framework="pt") as file:
        assert file.metadata()["darkroom_part_configs"]
    # A pickle brings no configs along; a tiny one is refused with a sentence, after it was recognised.
    torch.save({"state_dict": load_file(tmp_path / "a.safetensors")}, tmp_path / "a.ckpt")
    assert identify(tmp_path / "a.ckpt").model == "sd1"
    assert main(["convert", "a.ckpt", "b.safetensors"]) == 2
    assert not (tmp_path / "b.safetensors").exists()


def test_weights_in_another_dtype(tmp_path: Path) -> None:
    write_tiny(tmp_path / "a.safetensors", "sdxl")
    assert main(["convert", "a.safetensors", "h.safetensors", "--dtype", "float16"]) == 0
    full, half = load_file(tmp_path / "a.safetensors"), load_file(tmp_path / "h.safetensors")
    assert same({n: t.half() if t.is_floating_point() else t for n, t in full.items()}, half)
    assert main(["convert", "h.safetensors", "f", "--dtype", "bfloat16"]) == 0
    assert {t.dtype for t in weights(tmp_path / "f").values()} == {torch.bfloat16}


def test_v_prediction_survives_every_form(tmp_path: Path) -> None:
    write_tiny(tmp_path / "a.safetensors", "sdxl", prediction="v_prediction", zero_snr=True)
    assert main(["convert", "a.safetensors", "folder"]) == 0
    scheduler = json.loads((tmp_path / "folder" / "scheduler" / "scheduler_config.json").read_text())
    assert (scheduler["prediction_type"], scheduler["rescale_betas_zero_snr"]) == ("v_prediction", True)
    assert main(["convert", "folder", "b.safetensors"]) == 0
    assert {"v_pred", "ztsnr"} <= load_file(tmp_path / "b.safetensors").keys()
    assert identify(tmp_path / "b.safetensors").zero_snr


def some_layers(model: str, count: int = 40) -> list[AdapterLayer]:
    """LoRA layers on a sample of a published model's layers; their widths are small, their names the real ones."""
    generator = torch.Generator().manual_seed(0)
    targets = published_model(model).adapter_targets(shipped_configs(model)).all
    places = sorted((t.part, t.path) for t in targets if not t.is_norm)
    width = shipped_configs(model)["unet"]["cross_attention_dim"]
    layers = []
    for part, path in sorted({*places[:: max(len(places) // count, 1)], ("unet", telltale_layer(places))}):
        rank, columns = (3 if "mlp" in path else 2), (width if "attn2.to_k" in path else 5)
        down = torch.randn(rank, columns, generator=generator)
        layers.append(lora_layer(part, path, down, torch.randn(4, rank, generator=generator), 1.5))
    return layers


def telltale_layer(places: list[tuple[str, str]]) -> str:
    """The layer whose width identifies the model."""
    return next(path for part, path in places if part == "unet" and path.endswith("attn2.to_k"))


@pytest.mark.parametrize("model", ["sd1", "sd2", "sdxl"])
def test_a_lora_changes_its_form_and_comes_back_the_same(model: str, tmp_path: Path) -> None:
    layers = some_layers(model)
    tensors = to_kohya(layers, kohya_naming(model, shipped_configs(model)))
    metadata = {"ss_output_name": "mine", "ss_tag_frequency": '{"a": {"b": 1}}'}
    save_file(tensors, tmp_path / "k.safetensors", metadata)
    assert identify(tmp_path / "k.safetensors").facts.get("names") == ("sgm" if model == "sdxl" else "diffusers")
    assert main(["convert", "k.safetensors", "p.safetensors"]) == 0
    peft = load_file(tmp_path / "p.safetensors")
    for layer in layers:
        a, b = (peft[f"{layer.part}.{layer.path}.lora_{x}.weight"] for x in "AB")
        assert torch.equal(a, layer.factors[DOWN])
        assert torch.equal(b, layer.factors[UP])
    assert main(["convert", "p.safetensors", "again.safetensors"]) == 0
    again = load_file(tmp_path / "again.safetensors")
    assert same(again, tensors)
    with safe_open(tmp_path / "again.safetensors", framework="pt") as file:
        kept = file.metadata()
    assert kept.items() >= metadata.items()
    assert "lora_adapter_metadata" not in kept
    assert main(["convert", "k.safetensors", "half.safetensors", "--to", "kohya", "--dtype", "float16"]) == 0
    assert load_file(tmp_path / "half.safetensors").keys() == tensors.keys()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nowhere.safetensors", "b.safetensors"], "There is no file"),
        (["a.safetensors", "a.safetensors"], "is the source or inside it"),
        (["a.safetensors", "there.safetensors"], "already exists"),
        (["a.safetensors", "b.safetensors", "--to", "kohya"], "cannot be converted into a kohya LoRA"),
        (["a.safetensors", "b.ckpt"], "not a valid name for"),
        (["a.safetensors", "b", "--to", "single"], "not a valid name for"),
        (["page.safetensors", "b"], "web page"),
        (["vae.safetensors", "b"], "cannot be converted. A VAE alone"),
        (["loha.safetensors", "b.safetensors", "--to", "peft"], "holds only LoRA and DoRA"),
        (["a.safetensors", "full", "--overwrite"], "folder with other files in it"),
    ],
)
def test_impossible_conversions_are_reported(
    arguments: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tiny(tmp_path / "a.safetensors", "sd1")
    (tmp_path / "there.safetensors").write_bytes(b"mine")
    (tmp_path / "page.safetensors").write_bytes(b"<!DOCTYPE html>")
    save_file({"encoder.down.0.block.0.x": torch.ones(1)}, tmp_path / "vae.safetensors")
    key = "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn2_to_k"
    factors = {"hada_w1_a": (320, 4), "hada_w1_b": (4, 768), "hada_w2_a": (320, 4), "hada_w2_b": (4, 768)}
    loha = {f"{key}.{name}": torch.ones(shape) for name, shape in factors.items()} | {f"{key}.alpha": torch.ones(())}
    save_file(loha, tmp_path / "loha.safetensors", {"ss_base_model_version": "sd_v1"})
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "diary.txt").write_text("mine")
    assert main(["convert", *arguments]) == 2
    assert sentence in capsys.readouterr().err
    assert (tmp_path / "there.safetensors").read_bytes() == b"mine"
    assert (tmp_path / "full" / "diary.txt").read_text() == "mine"


def test_a_failed_conversion_leaves_the_old_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tiny(tmp_path / "a.safetensors", "sd1")
    state = load_file(tmp_path / "a.safetensors")
    state["model.diffusion_model.out.2.bias"][0] = float("nan")
    with safe_open(tmp_path / "a.safetensors", framework="pt") as file:
        save_file(state, tmp_path / "nan.safetensors", file.metadata())
    (tmp_path / "b.safetensors").write_bytes(b"good")
    assert main(["convert", "nan.safetensors", "b.safetensors", "--overwrite"]) == 2
    said = capsys.readouterr().err
    assert "NaN or infinite" in said
    assert "the file is damaged" in said
    assert "training" not in said
    assert (tmp_path / "b.safetensors").read_bytes() == b"good"
    assert main(["convert", "nan.safetensors", "folder"]) == 2
    assert "the file is damaged" in capsys.readouterr().err
    assert not (tmp_path / "folder").exists()
    assert not list(tmp_path.glob(".*"))


def test_inspect_prints_the_kind_the_programs_and_the_metadata(
    tiny_sd: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tiny(tmp_path / "a.safetensors", "sdxl", prediction="v_prediction", zero_snr=True)
    assert main(["inspect", "a.safetensors"]) == 0
    output = capsys.readouterr().out
    assert "A Stable Diffusion XL checkpoint with v-prediction and zero terminal SNR, float32." in output
    assert re.search("ComfyUI +no +does not recognise a model of a size that was never published", output)
    assert "modelspec.architecture: stable-diffusion-xl-v1-base" in output
    assert main(["inspect", "a.safetensors", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["kind"], data["model"], data["zero_snr"]) == ("checkpoint", "sdxl", True)
    complete = {x["program"]: x["complete"] for x in data["loads"]}
    assert complete == {"diffusers": False, "ComfyUI": False, "A1111": None, "Forge": None}
    assert main(["inspect", str(tiny_sd)]) == 0
    assert "diffusers' folder layout" in capsys.readouterr().out
    (tmp_path / "empty.safetensors").write_bytes(b"")
    assert main(["inspect", "empty.safetensors"]) == 2
    assert "is empty" in capsys.readouterr().out


FOREIGN = {
    "format": "pt",
    "ss_sd_model_name": "base.safetensors",
    "ss_sd_model_hash": "abcdef12",
    "ss_steps": "900",
    "prompt": json.dumps({"1": {"class_type": "CheckpointSave", "inputs": {"text": 'a "quoted" – prompt\n'}}}),
    "workflow": json.dumps({"nodes": [{"id": 1}]}),
    "software": '{"name": "another"}',
    "modelspec.sai_model_spec": "1.0.0",
    "modelspec.architecture": "stable-diffusion-xl-v1-base",
    "modelspec.implementation": "sgm",
    "modelspec.title": "The merge",
    "modelspec.date": "2024-05-06T07:08:09",
    "modelspec.author": "somebody",
    "modelspec.merged_from": "one, two",
    "modelspec.resolution": "1024x768",
    "modelspec.prediction_type": "v",
    "modelspec.predict_key": "v",
}
OLD_HASHES = {"modelspec.hash_sha256": "0x00", "sshs_model_hash": "00", "sshs_legacy_hash": "00"}
ADDED = {"modelspec.hash_sha256", "modelspec.unet_dtype", "modelspec.vae_dtype", "darkroom_part_configs"}


def metadata_of(path: Path) -> dict[str, str]:
    with safe_open(path, framework="pt") as file:
        found: dict[str, str] = file.metadata()
    return found


def test_metadata_survive_the_way_through_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tiny(tmp_path / "ours.safetensors", "sdxl", prediction="v_prediction")
    (tmp_path / "ours.yaml").unlink()
    configs = metadata_of(tmp_path / "ours.safetensors")["darkroom_part_configs"]
    foreign = {**FOREIGN, **OLD_HASHES, "darkroom_part_configs": configs}
    save_file(load_file(tmp_path / "ours.safetensors"), tmp_path / "a.safetensors", foreign)
    for source, out in (("a.safetensors", "f"), ("f", "g"), ("g", "b.safetensors"), ("a.safetensors", "c.safetensors")):
        assert main(["convert", source, out]) == 0
    b = metadata_of(tmp_path / "b.safetensors")
    assert {n: text for n, text in b.items() if n not in ADDED} == FOREIGN
    assert b == metadata_of(tmp_path / "c.safetensors")
    ours, theirs = json.loads(configs), json.loads(b["darkroom_part_configs"])
    assert {**ours, "scheduler": {**ours["scheduler"], "prediction_type": "v_prediction"}} == theirs
    payload = (tmp_path / "b.safetensors").read_bytes()
    payload = payload[8 + int.from_bytes(payload[:8], "little") :]
    assert b["modelspec.hash_sha256"] == f"0x{hashlib.sha256(payload).hexdigest()}"
    assert not any(text in (tmp_path / "f" / "unet" / "config.json").read_text() for text in ("merge", "somebody"))
    capsys.readouterr()
    assert main(["inspect", "f"]) == 0
    assert "modelspec.title: The merge" in capsys.readouterr().out


def test_metadata_of_a_folder_vanish_with_the_weights_they_describe(tmp_path: Path) -> None:
    write_tiny(tmp_path / "a.safetensors", "sd1")
    assert main(["convert", "a.safetensors", "f"]) == 0
    pipe = StableDiffusionPipeline.from_pretrained(tmp_path / "f", local_files_only=True)
    pipe.save_pretrained(tmp_path / "f")
    assert main(["convert", "f", "b.safetensors"]) == 0
    metadata = metadata_of(tmp_path / "b.safetensors")
    assert metadata["modelspec.title"] == "b"
    assert "modelspec.date" not in metadata  # the date of the conversion is not the model's


@pytest.mark.parametrize("model", ["sd1", "sdxl"])
def test_the_yaml_of_v_prediction_comes_along(model: str, tmp_path: Path) -> None:
    write_tiny(tmp_path / "a.safetensors", model, prediction="v_prediction", zero_snr=True)
    assert main(["convert", "a.safetensors", "f"]) == 0
    assert main(["convert", "f", "b.safetensors"]) == 0
    assert (tmp_path / "a.yaml").read_bytes() == (tmp_path / "b.yaml").read_bytes()
    found = identify(tmp_path / "b.safetensors")
    assert (found.prediction, found.zero_snr) == ("v_prediction", True)
    copy_model(tmp_path / "b.safetensors", tmp_path / "c.safetensors")
    assert identify(tmp_path / "c.safetensors").prediction == "v_prediction"
    write_tiny(tmp_path / "b.safetensors", model)
    assert identify(tmp_path / "b.safetensors").prediction == "epsilon"
    (tmp_path / "c.yaml").write_text("parameterization: v # somebody's own\n")
    write_tiny(tmp_path / "c.safetensors", model)
    assert (tmp_path / "c.yaml").exists()
