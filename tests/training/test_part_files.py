"""Each part from a file of its own: the text encoder and the VAE as ComfyUI's users have them, next to the transformer.

Z-Image stands for the flow families; `test_denoiser_files.py` has the layouts of the transformer.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from benchmarks.gguf_file import write_gguf
from modules.config.quantized_parts import quantized_parts
from modules.config.schema import Config
from modules.families.kinds.identify import identify
from modules.families.parts.single_file.autoencoder import vae_slots, vae_slots_of
from modules.families.parts.single_file.models import CONFIGS_KEY
from modules.families.parts.single_file.moves import to_original
from modules.families.parts.single_file.write import file_state
from modules.families.protocol import ModelFamily
from modules.families.registry import FAMILIES, files_of, published_models
from modules.formats.gguf_tensors import gguf_tensors
from modules.formats.lazy_tensors import lazy_state
from modules.memory.placement import Placement
from modules.quantization.linear import QuantizedLinear
from modules.system.errors import DarkroomError
from tests.builders.configs import config_fixture, laid_over
from tests.builders.flow_models import WITH_VARIANTS, flow_model
from tests.builders.part_files import State, dequantized, llama_names, scaled_float8, write_shards
from tests.builders.pipelines import load_tiny
from tests.builders.runs import assert_equal_tensors, run
from tests.builders.z_image import tiny_flux_vae, tiny_qwen, tiny_transformer
from tests.training.test_denoiser_files import BASE, fused
from trainer.events import StepFinished
from trainer.preflight import check
from trainer.run.reading import load_family

REPOSITORY = "models--Tongyi-MAI--Z-Image-Turbo"


@pytest.fixture(scope="module")
def model(tiny_z_image: Path) -> Path:
    return tiny_z_image


@pytest.fixture(scope="module")
def states(model: Path) -> dict[str, State]:
    files = {"transformer": "diffusion_pytorch_model", "vae": "diffusion_pytorch_model", "text_encoder": "model"}
    return {part: load_file(model / part / f"{file}.safetensors") for part, file in files.items()}


@pytest.fixture(scope="module")
def hollow(model: Path) -> Path:
    """The model without any weights: configs and the tokenizer."""
    folder = model.parent / "hollow parts"
    shutil.copytree(model, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    return folder


@pytest.fixture(scope="module")
def files(model: Path, states: dict[str, State]) -> dict[str, Path]:
    """Files of the parts, as ComfyUI has them."""
    folder = model.parent / "files"
    folder.mkdir()
    places = {"transformer": "z_image.safetensors", "text_encoder": "qwen_3_4b.safetensors", "vae": "ae.safetensors"}
    paths = {part: folder / name for part, name in places.items()}
    save_file({f"model.{n}": t for n, t in states["text_encoder"].items()}, paths["text_encoder"])
    original = to_original(vae_slots(dict(tiny_flux_vae().config)), lazy_state(dict(states["vae"])))
    save_file({n: t.make().contiguous() for n, t in original.items()}, paths["vae"])
    configs = {
        name: dict(part.config) for name, part in (("transformer", tiny_transformer()), ("vae", tiny_flux_vae()))
    }
    configs |= {"text_encoder": tiny_qwen().config.to_dict()}
    save_file(
        {f"model.diffusion_model.{n}": t for n, t in fused(dict(states["transformer"])).items()},
        paths["transformer"],
        {CONFIGS_KEY: json.dumps(configs, default=list)},
    )
    return paths


config = config_fixture("hollow", BASE)


def with_files(config: Config, files: dict[str, Path], **more: Any) -> Config:
    return laid_over(laid_over(config, {"parts": {part: {"file": str(f)} for part, f in files.items()}}), more)


def load(config: Config) -> ModelFamily:
    return load_family(config.model, config.part, quantized=quantized_parts(config))


def weights_of(config: Config, part: str) -> State:
    return dict(load(config).parts[part].module.state_dict())


def encoder(config: Config, files: dict[str, Path], file: Path, **more: Any) -> Config:
    return with_files(config, {**files, "text_encoder": file}, **more)


# -- reading


@pytest.mark.daily(5)
@pytest.mark.parametrize("name", WITH_VARIANTS)
def test_every_part_of_a_flow_model_is_read_from_a_file(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """The denoiser and the VAE in original names, text encoders in those of files; next to configs and tokenizers."""
    folder, spec = request.getfixturevalue(name), flow_model(name).spec
    hollow = tmp_path / "hollow"
    parts = spec.in_base_model.parts
    places = {part.name for part in parts}
    shutil.copytree(
        folder,
        hollow,
        ignore=lambda inside, names: [n for n in names if n.endswith(".safetensors") and Path(inside).name in places],
    )
    family = load_tiny(folder, spec.name)
    written = {}
    for part in parts:
        if part.role == "vae" and part.model.vae_file is None:  # no program writes it alone
            shutil.copytree(folder / part.name, hollow / part.name, dirs_exist_ok=True)
            continue
        module = family.parts[part.name].module
        state = file_state(part.model, lazy_state(module.state_dict()))
        if part.role == "denoiser":
            record = files_of(spec.name).denoiser_file
            assert record is not None
            layout = record.layout(dict(module.config))
            state = {f"{layout.prefix}{n}": t for n, t in to_original(layout.slots, state).items()}
        elif part.role == "vae":
            state = to_original(vae_slots_of(part.model, dict(module.config)), state)
        written[part.name] = tmp_path / f"{part.name}.safetensors"
        save_file({n: t.make().clone().contiguous() for n, t in state.items()}, written[part.name])
    again = load_tiny(hollow, spec.name, part_files={part: str(file) for part, file in written.items()})
    for part_name, part in family.parts.items():
        assert_equal_tensors(dict(again.parts[part_name].module.state_dict()), dict(part.module.state_dict()))
    assert again.text_identity() == family.text_identity()


def test_models_in_a_file_name_the_repository_of_tokenizers_that_are_not_in_the_program() -> None:
    named = {m.name: bool(m.repository) for m in published_models() if m.single_file is not None}
    needed = {m.name: not FAMILIES[m.family].text.ships_vocabulary for m in published_models() if m.single_file}
    assert named == needed


def test_a_run_from_three_files_is_that_from_the_folder(
    config: Config, files: dict[str, Path], model: Path, states: dict[str, State]
) -> None:
    from_files = with_files(config, files)
    assert not check(from_files).errors
    family = load(from_files)
    for part, state in states.items():
        assert_equal_tensors(dict(family.parts[part].module.state_dict()), dict(state))
    ours, theirs = run(from_files), run(laid_over(config, {"model": {"base_model": str(model)}}))
    assert [e.loss for e in ours.of(StepFinished)] == [e.loss for e in theirs.of(StepFinished)]
    assert_equal_tensors(ours.weights, theirs.weights)


def test_the_transformer_itself_can_be_the_base_model(
    config: Config, files: dict[str, Path], states: dict[str, State], hollow: Path, tmp_path: Path
) -> None:
    """Only the tokenizer comes from the published repository, here a downloaded one."""
    snapshot = tmp_path / "hub" / REPOSITORY / "snapshots" / "abc"
    for file in hollow.rglob("*.json"):
        (snapshot / file.relative_to(hollow)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, snapshot / file.relative_to(hollow))
    (tmp_path / "hub" / REPOSITORY / "refs").mkdir()
    (tmp_path / "hub" / REPOSITORY / "refs" / "main").write_text("abc")
    base = {"base_model": str(files["transformer"]), "offline": True, "hub_cache_dir": str(tmp_path / "hub")}
    others = {part: file for part, file in files.items() if part != "transformer"}
    alone = with_files(config, others, model=base)
    assert not check(alone).errors
    family = load(alone)
    assert_equal_tensors(dict(family.parts["transformer"].module.state_dict()), dict(states["transformer"]))
    assert family.count_tokens("a zog") == 5
    without = laid_over(alone, {"model": {"hub_cache_dir": str(tmp_path / "none")}})
    assert "tokenizer of Z-Image has not been downloaded" in message_of(without, "model.base_model")
    lacking = with_files(config, {"vae": files["vae"]}, model=base)
    assert "has no Text encoder (Qwen3)" in message_of(lacking, "model.base_model")
    with pytest.raises(DarkroomError, match="has no Text encoder"):
        load(lacking)


@pytest.mark.parametrize("form", ["bare", "of a checkpoint", "shards", "gguf"])
def test_the_text_encoder_is_read_in_every_form(
    form: str, config: Config, files: dict[str, Path], states: dict[str, State], tmp_path: Path
) -> None:
    state, file = dict(states["text_encoder"]), tmp_path / "encoder.safetensors"
    expected: State = state
    if form == "shards":
        file = write_shards(tmp_path / "shards", {**state, "lm_head.weight": torch.zeros(2, 2)})
    elif form == "gguf":
        file = tmp_path / "encoder.gguf"
        write_gguf(file, llama_names(state), kind="Q8_0")
        unpacked = {name: tensor.make() for name, tensor in gguf_tensors(file)[0].items()}
        expected = {name: unpacked[theirs] for name, theirs in zip(state, llama_names(state), strict=True)}
    else:
        prefix = "" if form == "bare" else "text_encoders.qwen3_4b.transformer.model."
        save_file({f"{prefix}{n}": t for n, t in state.items()}, file)
    assert "language model" in identify(file).sentence
    from_file = encoder(config, files, file)
    assert not check(from_file).errors
    assert_equal_tensors(weights_of(from_file, "text_encoder"), dict(expected))


def test_a_gguf_encoder_stays_packed(
    config: Config, files: dict[str, Path], states: dict[str, State], tmp_path: Path
) -> None:
    file = tmp_path / "encoder.gguf"
    write_gguf(file, llama_names(states["text_encoder"]), kind="Q8_0")
    packed = encoder(config, files, file, parts={"text_encoder": {"dtype": "gguf"}})
    assert not check(packed).errors
    module = load(packed).parts["text_encoder"].module
    layer = module.get_submodule("layers.1.mlp.down_proj")
    assert isinstance(layer, QuantizedLinear)
    unpacked = gguf_tensors(file)[0]["blk.1.ffn_down.weight"].make()
    assert torch.equal(layer.weight.float(), unpacked)
    assert run(packed).of(StepFinished)


# -- scaled float8


@pytest.mark.parametrize("names", ["scale_weight", "weight_scale", "weight_scale of rows"])
def test_scaled_float8_is_multiplied_or_kept(
    names: Any, config: Config, files: dict[str, Path], states: dict[str, State], tmp_path: Path
) -> None:
    encoder_file, transformer = tmp_path / "encoder.safetensors", tmp_path / "transformer.safetensors"
    of_encoder = scaled_float8(states["text_encoder"], names)
    of_transformer = scaled_float8(fused(dict(states["transformer"])), names, keeps=("norm", "token"))
    save_file(dict(of_encoder), encoder_file)
    save_file({f"model.diffusion_model.{n}": t for n, t in of_transformer.items()}, transformer)
    assert "scaled float8" in identify(transformer).sentence
    scaled = with_files(config, {**files, "text_encoder": encoder_file, "transformer": transformer})
    assert not check(scaled).errors
    family = load(scaled)
    assert_equal_tensors(dict(family.parts["text_encoder"].module.state_dict()), dequantized(of_encoder))
    found = fused(dict(family.parts["transformer"].module.state_dict()))
    assert_equal_tensors(found, dequantized(of_transformer))
    kept = load(laid_over(scaled, {"parts": {p: {"dtype": "float8"} for p in ("text_encoder", "transformer")}}))
    for part, path, stored in (
        ("text_encoder", "layers.0.self_attn.q_proj", of_encoder["layers.0.self_attn.q_proj.weight"]),
        ("transformer", "layers.1.attention.to_k", of_transformer["layers.1.attention.qkv.weight"].chunk(3)[1]),
    ):
        layer = kept.parts[part].module.get_submodule(path)
        assert isinstance(layer, QuantizedLinear)
        assert torch.equal(layer.packed.float(), stored.float())
        assert torch.equal(layer.weight, family.parts[part].module.get_submodule(path).weight)


def test_a_run_keeps_scaled_float8(
    config: Config, files: dict[str, Path], states: dict[str, State], tmp_path: Path
) -> None:
    file = tmp_path / "transformer.safetensors"
    save_file(dict(scaled_float8(fused(dict(states["transformer"])), "scale_weight", keeps=("norm", "token"))), file)
    kept = with_files(config, {**files, "transformer": file}, parts={"transformer": {"dtype": "float8"}})
    assert not check(kept).errors
    assert run(kept).of(StepFinished)


# -- phases


def test_encoders_leave_the_card_before_the_transformer_comes(
    config: Config, files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Captions and images are encoded and cached first, each encoder alone, unless the card has room for more."""
    seen: dict[str, set[str]] = {}
    plain = Placement.enter

    def enter(self: Placement, phase: str) -> None:
        plain(self, phase)
        there = {name for name in ("transformer", "text_encoder", "vae") if self.device_of(name).name == "cpu:1"}
        seen.setdefault(phase, set()).update(there)

    monkeypatch.setattr(Placement, "enter", enter)
    cached = with_files(
        config,
        files,
        general={"train_device": "cpu:1", "debug_checks": True},
        data={"latent_cache": True, "text_cache": True},
        parts={"text_encoder": {"dtype": "int8"}},
    )
    assert run(cached).of(StepFinished)
    assert seen["cache_images"] == {"vae"}
    assert seen["cache_captions"] == {"text_encoder"}
    assert seen["train"] == {"transformer"}


# -- bad input


def message_of(config: Config, path: str) -> str:
    return {p.path: p.message for p in check(config).errors}.get(path, "")


def test_a_scaled_file_without_its_scales_is_refused(
    config: Config, files: dict[str, Path], states: dict[str, State], tmp_path: Path
) -> None:
    """Read without its scales, such a file would be another model."""
    file = tmp_path / "scaled.safetensors"
    state = scaled_float8(states["text_encoder"], "scale_weight")
    broken = {
        "lacks the scales of 21 weights": {n: t for n, t in state.items() if not n.endswith("scale_weight")},
        "lacks the scales of 1 weight,": {n: t for n, t in state.items() if n != "layers.0.mlp.up_proj.scale_weight"},
        "scales for blocks": {**state, "layers.0.mlp.up_proj.scale_weight": torch.ones(2, 3)},
        "weights in F32 with scales": {**state, "layers.0.mlp.up_proj.weight": torch.ones(2, 3)},
    }
    for expected, tensors in broken.items():
        save_file(dict(tensors), file)
        found = encoder(config, files, file)
        assert expected in message_of(found, "parts.text_encoder.file")
        with pytest.raises(DarkroomError, match=expected.split(",")[0]):
            load(found)


def test_an_encoder_of_another_kind_or_size_is_refused(
    config: Config, files: dict[str, Path], states: dict[str, State], tmp_path: Path
) -> None:
    file, state = tmp_path / "encoder.safetensors", dict(states["text_encoder"])
    further = {n.replace("layers.2.", "layers.3."): t.clone() for n, t in state.items() if n.startswith("layers.2.")}
    t5 = {"shared.weight": torch.ones(2, 2), "encoder.block.0.layer.0.SelfAttention.q.weight": torch.ones(2, 2)}
    broken: dict[str, State] = {
        "embed_tokens.weight is (260, 48) where (260, 24)": {**state, "embed_tokens.weight": torch.ones(260, 48)},
        "11 of its 35 weights are missing": {n: t for n, t in state.items() if not n.startswith("layers.2.")},
        "11 further weights": {**state, **further},
        "The T5 text encoder in encoder.safetensors": t5,
        "contains no Text encoder": states["vae"],
    }
    for expected, tensors in broken.items():
        save_file({n: t.contiguous() for n, t in tensors.items()}, file)
        found = encoder(config, files, file)
        assert expected in message_of(found, "parts.text_encoder.file"), expected
        with pytest.raises(DarkroomError):
            load(found)


def test_files_of_other_parts_and_missing_ones_are_refused(
    config: Config, files: dict[str, Path], tmp_path: Path
) -> None:
    swapped = with_files(config, {**files, "vae": files["text_encoder"], "text_encoder": files["vae"]})
    assert "contains no VAE" in message_of(swapped, "parts.vae.file")
    assert "contains no Text encoder" in message_of(swapped, "parts.text_encoder.file")
    index = tmp_path / "model.safetensors.index.json"
    for text, expected in (("{}", "is not an index"), ('{"weight_map": {"a": "../x.safetensors"}}', "next to it")):
        index.write_text(text)
        assert expected in message_of(encoder(config, files, index), "parts.text_encoder.file")
    index.write_text('{"weight_map": {"a": "x.safetensors"}}')
    assert "names x.safetensors, which is not" in message_of(encoder(config, files, index), "parts.text_encoder.file")
    without = with_files(config, {part: file for part, file in files.items() if part != "vae"})
    assert "the weights of vae are missing" in message_of(without, "model.base_model")
