"""Single files as they are written and read, and as they are found in the wild."""

from __future__ import annotations

import tempfile
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from modules.families.kinds.identify import identify
from modules.families.parts.part_classes import KL_VAE
from modules.families.parts.single_file.checkpoint import empty_part, load_part, load_vae_file, open_checkpoint
from modules.families.parts.single_file.write import CheckpointTraits, write_checkpoint
from modules.families.registry import published_models
from modules.formats.lazy_tensors import LazyTensor, lazy
from modules.system.errors import DarkroomError
from tests.builders.single_files import CLASSES, NOW, build_parts, states_of, tiny_configs, write_tiny

pytestmark = pytest.mark.usefixtures("one_thread")

MODELS = sorted(m.name for m in published_models() if "unet" in m.shipped_configs())


def load(path: Path, *, dtype: torch.dtype = torch.float32, **options: Any) -> dict[str, Any]:
    checkpoint = open_checkpoint(path)
    return {p: load_part(checkpoint, p, CLASSES[p], dtype, **options) for p in checkpoint.parts}


def assert_equal(ours: dict[str, Any], theirs: dict[str, Any], dtype: torch.dtype | None = None) -> None:
    assert ours.keys() == theirs.keys()
    for name, module in ours.items():
        state, other = module.state_dict(), theirs[name].state_dict()
        assert state.keys() == other.keys()
        for key, tensor in state.items():
            assert torch.equal(tensor.to(dtype or tensor.dtype), other[key]), f"{name}.{key}"


@pytest.mark.parametrize("model", MODELS)
def test_written_and_read_again_it_is_the_same(model: str, tmp_path: Path) -> None:
    parts = write_tiny(tmp_path / "model.safetensors", model)
    loaded = load(tmp_path / "model.safetensors")
    assert_equal(parts, loaded)
    for module in loaded.values():
        assert not module.training
        assert not any(p.requires_grad or p.is_meta for p in module.parameters())
        assert not any(b.is_meta for b in module.buffers())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_are_stored_and_loaded_in_the_wanted_dtype(dtype: torch.dtype, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    parts = write_tiny(path, "sd1", dtype=dtype)
    assert {t.dtype for n, t in load_file(path).items() if "position_ids" not in n} == {dtype}
    assert_equal(parts, load(path, dtype=dtype), dtype)


def test_a_loaded_text_encoder_computes_what_the_saved_one_did(tmp_path: Path) -> None:
    """Its positions are in no file; they are made."""
    parts = write_tiny(tmp_path / "model.safetensors", "sdxl")
    loaded = load(tmp_path / "model.safetensors")
    ids = torch.tensor([[58, 3, 4, 59]])
    for name in ("text_encoder", "text_encoder_2"):
        ours, theirs = parts[name](input_ids=ids), loaded[name](input_ids=ids)
        assert torch.equal(ours.last_hidden_state, theirs.last_hidden_state)


def test_older_files_without_text_model_are_read(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    parts = write_tiny(path, "sd1")
    metadata = configs_of(path)
    state = {n.replace("transformer.text_model.", "transformer."): t for n, t in load_file(path).items()}
    save_file(state, path, metadata)
    assert_equal(parts, load(path))


def configs_of(path: Path) -> dict[str, str]:
    from modules.formats.headers import read_header

    return dict(read_header(path).metadata)


def test_leftovers_of_training_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    parts = write_tiny(path, "sd1")
    metadata, state = configs_of(path), load_file(path)
    noise = {"alphas_cumprod": torch.ones(9), "model_ema.decay": torch.tensor(0.9), "betas": torch.ones(9)}
    noise |= {
        "first_stage_model.loss.logvar": torch.zeros(()),
        "cond_stage_model.transformer.logit_scale": torch.ones(1),
    }
    noise["cond_stage_model.transformer.text_model.embeddings.position_ids"] = torch.ones(1, 77).half()
    noise["embedding_manager.x"] = torch.ones(1)
    save_file(state | noise, path, metadata)
    assert_equal(parts, load(path))


def test_ema_weights_are_read_on_request(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    parts = write_tiny(path, "sd1")
    metadata, state = configs_of(path), load_file(path)
    unet = {n: t for n, t in state.items() if n.startswith("model.diffusion_model.")}
    averaged = {f"model_ema.{n.removeprefix('model.').replace('.', '')}": t + 1 for n, t in unet.items()}
    save_file(state | averaged, path, metadata)
    assert_equal(parts, load(path))
    checkpoint = open_checkpoint(path)
    unet = load_part(checkpoint, "unet", CLASSES["unet"], torch.float32, use_ema=True)
    assert torch.equal(unet.conv_in.bias, parts["unet"].conv_in.bias + 1)


def test_a_missing_vae_is_reported_and_read_from_a_vae_file(tmp_path: Path) -> None:
    path, alone, diffusers_alone = (tmp_path / f"{n}.safetensors" for n in ("model", "vae", "diffusers vae"))
    parts = write_tiny(path, "sd1")
    metadata, state = configs_of(path), load_file(path)
    vae = {n: t for n, t in state.items() if n.startswith("first_stage_model.")}
    save_file({n: t for n, t in state.items() if n not in vae}, path, metadata)
    save_file({n.removeprefix("first_stage_model."): t for n, t in vae.items()}, alone)
    old = {"to_q": "query", "to_k": "key", "to_v": "value", "to_out.0": "proj_attn"}
    named = parts["vae"].state_dict()
    for new, name in old.items():
        named = {k.replace(f"attentions.0.{new}.", f"attentions.0.{name}."): t for k, t in named.items()}
    save_file(named, diffusers_alone)
    checkpoint = open_checkpoint(path)
    assert "vae" not in checkpoint.parts
    assert "without VAE" in checkpoint.kind.sentence
    with pytest.raises(DarkroomError, match="contains no VAE"):
        load_part(checkpoint, "vae", CLASSES["vae"], torch.float32)
    for file in (alone, diffusers_alone):
        assert identify(file).kind == "vae"
        module = load_vae_file(file, KL_VAE, checkpoint.configs["vae"], torch.float32)
        assert_equal({"vae": parts["vae"]}, {"vae": module})


@pytest.mark.parametrize("blocks", [24, 23])
def test_sd2s_last_block_is_written_and_may_be_missing(blocks: int, tmp_path: Path) -> None:
    """The published text encoder has 24 blocks, of which diffusers' config keeps the 23 that are run."""
    path, configs = tmp_path / "model.safetensors", tiny_configs("sd2")
    configs["text_encoder"]["num_hidden_layers"] = 23
    parts = build_parts(configs)
    write_checkpoint(path, states_of(parts), configs, CheckpointTraits("sd2"), dtype=None, title="x", created=NOW)
    metadata, state = configs_of(path), load_file(path)
    last = [n for n in state if ".resblocks.23." in n]
    assert len(last) == 12
    save_file({n: t for n, t in state.items() if blocks == 24 or n not in last}, path, metadata)
    assert_equal(parts, load(path))


def test_attention_of_the_vae_may_be_linear_or_convolutions(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    parts = write_tiny(path, "sd1")
    metadata, state = configs_of(path), load_file(path)
    assert state["first_stage_model.encoder.mid.attn_1.q.weight"].ndim == 4
    flat = {n: t.reshape(t.shape[:2]) if ".attn_1." in n and t.ndim == 4 else t for n, t in state.items()}
    save_file(flat, path, metadata)
    assert_equal(parts, load(path))


@pytest.mark.parametrize("nested", [True, False])
def test_a_pickled_checkpoint_is_read_without_running_it(nested: bool, tmp_path: Path) -> None:
    path, pickled = tmp_path / "model.safetensors", tmp_path / "model.ckpt"
    parts = write_tiny(path, "sd1")
    state = load_file(path)
    torch.save({"state_dict": state, "global_step": 3, "epoch": 1} if nested else state, pickled)
    assert identify(pickled).model == "sd1"
    checkpoint = open_checkpoint(pickled, part_configs=tiny_configs("sd1"))
    assert checkpoint.tensors.keys() == state.keys()
    assert_equal(parts, {p: load_part(checkpoint, p, CLASSES[p], torch.float32) for p in checkpoint.parts})


class Planted:
    """What would run on unpickling."""

    def __reduce__(self) -> Any:
        return (Path.touch, (Path(tempfile.gettempdir()) / "darkroom-must-not-run",))


def test_code_in_a_checkpoint_never_runs(tmp_path: Path) -> None:
    path = tmp_path / "model.ckpt"
    write_tiny(tmp_path / "model.safetensors", "sd1")
    torch.save({"state_dict": load_file(tmp_path / "model.safetensors"), "extra": Planted()}, path)
    found = identify(path)
    assert found.model == "sd1"
    assert "not safe to load: it would call or create" in found.sentence
    with pytest.raises(DarkroomError, match="more than weights"):
        open_checkpoint(path)
    assert not (Path(tempfile.gettempdir()) / "darkroom-must-not-run").exists()


def test_the_leftovers_of_sd1s_own_trainer_become_nothing(tmp_path: Path) -> None:
    """The published 1.4 names pytorch_lightning's callback class beside its weights."""
    import sys
    from types import ModuleType

    names = ("pytorch_lightning", "pytorch_lightning.callbacks", "pytorch_lightning.callbacks.model_checkpoint")
    modules = {n: ModuleType(n) for n in names}
    kind = type("ModelCheckpoint", (), {"__module__": names[-1]})
    modules[names[-1]].ModelCheckpoint = kind  # type: ignore[attr-defined]
    sys.modules.update(modules)
    try:
        torch.save({"state_dict": {"w": torch.ones(2)}, "callbacks": {kind: {"best": 1.0}}}, tmp_path / "m.ckpt")
    finally:
        for name in names:
            del sys.modules[name]
    from modules.formats.stored_tensors import read_pickled_tensors

    assert read_pickled_tensors(tmp_path / "m.ckpt").keys() == {"w"}


def test_one_tensor_at_a_time_is_in_memory(tmp_path: Path) -> None:
    """What a streamed save is for; three at most where query, key and value become one."""
    configs = tiny_configs("sdxl")
    alive: list[weakref.ref[torch.Tensor]] = []
    most = 0

    def watched(tensor: torch.Tensor) -> LazyTensor:
        def make() -> torch.Tensor:
            nonlocal most
            copy = tensor.clone()
            alive.append(weakref.ref(copy))
            most = max(most, sum(ref() is not None for ref in alive))
            return copy

        return LazyTensor(tuple(tensor.shape), tensor.dtype, make)

    states = {
        name: {n: watched(t) for n, t in part.state_dict().items()} for name, part in build_parts(configs).items()
    }
    path = tmp_path / "model.safetensors"
    write_checkpoint(path, states, configs, CheckpointTraits("sdxl"), dtype=torch.float16, title="x", created=NOW)
    assert len(alive) == sum(len(state) for state in states.values())
    assert most <= 3


@pytest.mark.parametrize("damage", ["missing", "extra", "nan"])
def test_a_broken_model_is_never_saved(damage: str, tmp_path: Path) -> None:
    path, configs = tmp_path / "model.safetensors", tiny_configs("sd1")
    write_tiny(path, "sd1")
    good = path.read_bytes()
    states = states_of(build_parts(configs))
    name = next(iter(states["unet"]))
    match damage:
        case "missing":
            del states["unet"][name]
        case "extra":
            states["unet"]["more.weight"] = lazy(torch.ones(1))
        case "nan":
            states["unet"][name] = lazy(torch.full(states["unet"][name].shape, float("nan")))
    with pytest.raises(DarkroomError, match=r"(?i)nothing was saved"):
        write_checkpoint(path, states, configs, CheckpointTraits("sd1"), dtype=None, title="x", created=NOW)
    assert path.read_bytes() == good
    assert [p.name for p in tmp_path.iterdir() if p.is_file()] == ["model.safetensors"]


def test_a_file_with_missing_weights_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write_tiny(path, "sd1")
    metadata, state = configs_of(path), load_file(path)
    del state["model.diffusion_model.out.2.bias"]
    save_file(state, path, metadata)
    with pytest.raises(
        DarkroomError, match=r"1 weights of the UNet are missing from .*; the first is model\.diffusion_model\.out"
    ):
        load(path)
    state["model.diffusion_model.out.2.bias"] = torch.ones(3)
    save_file(state, path, metadata)
    with pytest.raises(DarkroomError, match=r"do not fit its config; the first is conv_out\.bias: \(3,\)"):
        load(path)
    state["model.diffusion_model.motion"] = torch.ones(3)
    save_file(state, path, metadata)
    with pytest.raises(DarkroomError, match="does not have; the first"):
        load(path)


def test_v_prediction_and_zero_snr_are_marked_for_each_program(tmp_path: Path) -> None:
    path = tmp_path / "xl.safetensors"
    write_tiny(path, "sdxl", prediction="v_prediction", zero_snr=True)
    state, metadata = load_file(path), configs_of(path)
    assert state["v_pred"].numel() == state["ztsnr"].numel() == 0
    assert metadata["modelspec.prediction_type"] == metadata["modelspec.predict_key"] == "v"
    scheduler = open_checkpoint(path).scheduler_config()
    assert (scheduler["prediction_type"], scheduler["rescale_betas_zero_snr"]) == ("v_prediction", True)
    write_tiny(tmp_path / "sd2.safetensors", "sd2_v", prediction="v_prediction")
    assert 'parameterization: "v"' in (tmp_path / "sd2.yaml").read_text()
    assert open_checkpoint(tmp_path / "sd2.safetensors").scheduler_config()["prediction_type"] == "v_prediction"
    write_tiny(tmp_path / "sd1.safetensors", "sd1", prediction="v_prediction")
    assert identify(tmp_path / "sd1.safetensors").prediction == "v_prediction"


def test_the_hash_in_the_metadata_is_the_payloads(tmp_path: Path) -> None:
    import hashlib

    path = tmp_path / "model.safetensors"
    write_tiny(path, "sd1")
    content = path.read_bytes()
    payload = content[8 + int.from_bytes(content[:8], "little") :]
    assert configs_of(path)["modelspec.hash_sha256"] == f"0x{hashlib.sha256(payload).hexdigest()}"


def test_no_initial_values_are_drawn_where_weights_have_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch draws normal ones in Python there, three of the five seconds that an autoencoder of Wuerstchen took."""
    drawn: list[torch.Tensor] = []
    monkeypatch.setattr(torch.Tensor, "normal_", lambda weight, *_, **__: drawn.append(weight))

    class Small(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 2)
            torch.nn.init.normal_(self.layer.weight)

        @classmethod
        def from_config(cls, config: object) -> Small:
            return cls()

    assert empty_part(Small, {}).layer.weight.is_meta
    assert drawn == []
    Small()
    assert len(drawn) == 1, "with memory they are"
