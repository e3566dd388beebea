"""Anima alone: long captions, its text conditioner, its files; what all flow families share is in `flow`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import AnimaModularPipeline
from safetensors.torch import load_file, save_file

from modules.config.codec import decode
from modules.config.imports.kohya_settings import tree_of_kohya
from modules.config.schema import Config
from modules.data.buckets import Size
from modules.estimate.tracing import trace_part
from modules.families.anima.files import TRANSFORMER_FILE
from modules.families.anima.model import Anima, text_mask
from modules.families.anima.spec import ANIMA, CONDITIONER
from modules.families.kinds.identify import identify
from modules.families.parts.single_file.checkpoint import empty_part
from modules.families.parts.single_file.models import shipped_configs
from modules.formats.safetensors_io import read_safetensors
from modules.system.devices import CPU
from modules.system.errors import DarkroomError
from modules.system.factories import load_factory
from tests.builders.anima import MIN_TOKENS, anima_pipeline
from tests.builders.configs import config_fixture, laid_over
from tests.builders.pipelines import family_fixture, load_tiny, noise_of
from tests.builders.runs import assert_equal_tensors, errors_of, run
from trainer.__main__ import main
from trainer.preflight import check
from trainer.preflight.run_budget import memory_estimate

LONG = "a red disc of a disc, " * 8


config = config_fixture("tiny_anima", {"training": {"epochs": 1}})
family = family_fixture("tiny_anima", ANIMA.name)


# -- captions


@torch.no_grad()
def test_a_caption_beyond_the_least_length_is_read_as_a_whole(family: Anima) -> None:
    """AnimaLoraStudio's issue 496: the least padded length was read as the most, so that captions were cut."""
    one, other = (family.encode_prompts([LONG + end]) for end in ("red", "ing"))
    assert one.lengths[0] > 2 * MIN_TOKENS
    noisy, timesteps = noise_of(family, batch=1, seed=4), torch.tensor([300.0])
    first, second = (family.predict(noisy, timesteps, text) for text in (one, other))
    assert not torch.allclose(first, second, atol=1e-4)


@torch.no_grad()
def test_a_long_caption_changes_nothing_for_a_short_one_beside_it(family: Anima) -> None:
    text = family.encode_prompts(["a", LONG])
    noisy, timesteps = noise_of(family, batch=2, seed=4), torch.tensor([300.0, 700.0])
    alone = [family.predict(noisy[i : i + 1], timesteps[i : i + 1], text.select([i])) for i in (0, 1)]
    torch.testing.assert_close(family.predict(noisy, timesteps, text), torch.cat(alone), rtol=1e-5, atol=2e-5)
    assert text_mask((3, 7), 24, CPU.torch) is None
    mask = text_mask((3, 6), 4, CPU.torch)
    assert mask is not None
    assert mask.tolist() == [[True] * 4 + [False] * 2, [True] * 6]


# -- the text conditioner


def test_the_conditioner_is_frozen_unless_it_is_to_be_trained(config: Config) -> None:
    frozen, trained = (laid_over(config, {"model": {"family": {"train_conditioner": t}}}) for t in (False, True))
    assert [p.name for p in frozen.family_parts if p.trainable] == ["transformer"]
    assert [p.name for p in trained.family_parts if p.trainable] == ["transformer", CONDITIONER]


def test_a_conditioner_with_a_rate_of_its_own_is_in_every_form_of_the_lora(
    config: Config, family: Anima, tiny_anima: Path, tmp_path: Path
) -> None:
    changes: dict[str, Any] = {
        "model": {"family": {"train_conditioner": True}},
        "parts": {CONDITIONER: {"learning_rate": 0.02}},
        "training": {"learning_rate": 0.01},
        "output": {"format": "diffusers", "dtype": "float32"},
    }
    ran = run(laid_over(config, changes))
    lora = Path(ran.finished.model_path)
    names = set(read_safetensors(lora)[0])
    assert any(n.startswith("text_conditioner.blocks.0.cross_attn.q_proj.lora_A") for n in names)
    assert any(n.startswith("transformer.transformer_blocks.0.attn1.to_q.lora_A") for n in names)
    for form, start in (
        ("comfyui", "diffusion_model.llm_adapter.blocks.0."),
        ("kohya", "lora_unet_llm_adapter_blocks_0_"),
    ):
        file = tmp_path / f"{form}.safetensors"
        assert main(["convert", str(lora), str(file), "--to", form]) == 0
        assert any(name.startswith(start) for name in read_safetensors(file)[0])
        assert identify(file).family == ANIMA.name
    merged = tmp_path / "merged"
    assert main(["lora-merge", str(tiny_anima), str(merged), str(tmp_path / "kohya.safetensors")]) == 0
    text = load_tiny(merged, ANIMA.name).encode_prompts(["a disc"]).states_BLD
    pipe = anima_pipeline(tiny_anima, family)
    plain = family.encode_prompts(["a disc"]).states_BLD
    pipe.load_lora_weights(lora)
    theirs = family.encode_prompts(["a disc"]).states_BLD
    assert not torch.allclose(plain, text, atol=1e-3)
    torch.testing.assert_close(theirs, text, rtol=1e-4, atol=1e-5)


def test_a_trained_conditioner_reads_a_batch_as_a_frozen_one_reads_each(family: Anima) -> None:
    with torch.no_grad():
        each = family.encode_prompts(["", "a red disc"])
    family.modules[CONDITIONER].requires_grad_(True)
    batch = family.encode_prompts(["", "a red disc"])
    assert batch.states_BLD.requires_grad
    torch.testing.assert_close(batch.states_BLD.detach(), each.states_BLD, rtol=1e-5, atol=1e-5)


# -- files


def test_a_fine_tune_is_one_file_with_the_conditioner_that_loads_again(
    config: Config, tiny_anima: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuned = {"training": {"trains": "full", "learning_rate": 1e-3}, "output": {"dtype": "float32"}}
    ran = run(laid_over(config, tuned))
    file = Path(ran.finished.model_path)
    names = set(load_file(file))
    assert {"net.blocks.0.self_attn.q_proj.weight", "net.llm_adapter.blocks.0.mlp.0.weight"} <= names
    assert all(name.startswith("net.") for name in names)
    kind = identify(file)
    assert (kind.kind, kind.family, kind.facts["also"]) == ("part", ANIMA.name, CONDITIONER)
    encoder, vae = (tiny_anima / name for name in ("text_encoder", "vae"))
    files = {"text_encoder": str(encoder / "model.safetensors"), "vae": str(vae)}
    assert (
        "has no Text encoder (Qwen3) and no VAE."
        in errors_of(config, model={"base_model": str(file)})["model.base_model"]
    )
    monkeypatch.setattr(
        "modules.families.parts.read_model.locate_for", lambda *_: tiny_anima
    )  # the repository's tokenizers
    again = load_tiny(file, ANIMA.name, part_files=files)
    weights = {n.removeprefix("transformer."): t for n, t in ran.weights.items() if n.startswith("transformer.")}
    assert_equal_tensors(again.denoiser.state_dict(), weights or again.denoiser.state_dict())
    text, noisy = again.encode_prompts(["a disc"]), noise_of(again, batch=1, seed=2)
    for prefix in ("model.diffusion_model.", ""):  # as ComfyUI's checkpoints and some conversions have it
        other = tmp_path / f"other{len(prefix)}.safetensors"
        save_file(
            {prefix + n.removeprefix("net."): t for n, t in load_file(file).items()}, other, read_safetensors(file)[1]
        )
        same = load_tiny(other, ANIMA.name, part_files=files)
        with torch.no_grad():
            pair = [f.predict(noisy, torch.tensor([400.0]), text) for f in (again, same)]
        assert torch.equal(*pair)
        assert torch.equal(same.encode_prompts(["a disc"]).states_BLD, text.states_BLD)


def test_the_conditioner_may_have_a_file_of_its_own(config: Config, family: Anima, tmp_path: Path) -> None:
    state = {n: t + 0.1 for n, t in family.modules[CONDITIONER].state_dict().items()}
    for prefix in ("llm_adapter.", ""):
        file = tmp_path / f"adapter{len(prefix)}.safetensors"
        save_file({f"{prefix}{n}": t.contiguous() for n, t in state.items()}, file)
        assert not check(laid_over(config, {"parts": {CONDITIONER: {"file": str(file)}}})).errors
        own = load_tiny(Path(config.model.base_model), ANIMA.name, part_files={CONDITIONER: str(file)})
        assert_equal_tensors(own.modules[CONDITIONER].state_dict(), state)
    save_file({"llm_adapter.embed.weight": torch.ones(2, 2)}, tmp_path / "wrong.safetensors")
    message = errors_of(config, parts={CONDITIONER: {"file": str(tmp_path / "wrong.safetensors")}})
    assert "does not fit the base model's: it lacks" in message[f"parts.{CONDITIONER}.file"]
    with pytest.raises(DarkroomError, match="it lacks"):
        load_tiny(
            Path(config.model.base_model), ANIMA.name, part_files={CONDITIONER: str(tmp_path / "wrong.safetensors")}
        )


def test_a_saved_folder_is_loaded_by_diffusers(config: Config, tmp_path: Path) -> None:
    """Its index names the published repository; diffusers takes the parts beside it."""
    output = {"model_format": "diffusers", "destination": str(tmp_path / "tuned"), "dtype": "float32"}
    ran = run(laid_over(config, {"training": {"trains": "full"}, "output": output}))
    pipe = AnimaModularPipeline.from_pretrained(ran.finished.model_path)
    pipe.load_components(torch_dtype=torch.float32)
    ours = load_tiny(Path(ran.finished.model_path), ANIMA.name)
    assert_equal_tensors(pipe.transformer.state_dict(), ours.denoiser.state_dict())
    assert_equal_tensors(pipe.text_conditioner.state_dict(), ours.modules[CONDITIONER].state_dict())
    assert pipe.scheduler.config.shift == 3.0


def test_the_published_conditioner_has_the_names_and_shapes_of_the_layout() -> None:
    """With the transformer's 1,956,405,248 weights they are the 4.18 GB of the published file."""
    config = shipped_configs("anima")[CONDITIONER]
    part = next(p for p in ANIMA.parts if p.name == CONDITIONER)
    state = empty_part(load_factory(part.model_class), config).state_dict()
    layout = TRANSFORMER_FILE.inside[CONDITIONER].layout(config)
    assert {slot.key for slot in layout.slots} == state.keys()
    assert sum(tensor.numel() for tensor in state.values()) == 134_663_680
    assert tuple(state["blocks.5.cross_attn.k_proj.weight"].shape) == (1024, 1024)


# -- files of other programs


@pytest.mark.parametrize("trains", [True, False])
def test_the_settings_of_sd_scripts_are_read(trains: bool) -> None:
    """`anima_train_network`: the conditioner is trained only if the network's arguments say so."""
    arguments = ["train_llm_adapter=True"] if trains else []
    given = {
        "pretrained_model_name_or_path": "anima.safetensors",
        "qwen3": "qwen_3_06b_base.safetensors",
        "vae": "qwen_image_vae.safetensors",
        "llm_adapter_path": "adapter.safetensors",
        "network_module": "networks.lora_anima",
        "network_args": arguments,
        "network_train_unet_only": True,
        "network_dim": 16,
        "learning_rate": 3e-5,
        "llm_adapter_lr": 5e-6,
        "timestep_sampling": "sigmoid",
    }
    config = decode(tree_of_kohya(given, [])).config
    assert config.family.name == ANIMA.name
    parts = ("text_encoder", CONDITIONER, "vae")
    assert [config.part(part).file for part in parts] == [given["qwen3"], given["llm_adapter_path"], given["vae"]]
    assert (config.training.noise.distribution, config.training.noise.shift) == ("logit_normal", 1.0)
    assert config.model.family.train_conditioner is trains
    trained = {p.name: config.part(p.name) for p in config.family_parts if p.trainable}
    assert (CONDITIONER in trained) is trains
    if trains:
        assert trained[CONDITIONER].train
        assert trained[CONDITIONER].learning_rate == 5e-6
    assert "kohya" not in config.unknown


# -- memory


def test_an_estimate_prints_no_warnings_of_diffusers(family: Anima, caplog: pytest.LogCaptureFixture) -> None:
    """It traces the transformer in 16 bits on the meta device, also the table that diffusers keeps in float32."""
    assert trace_part(ANIMA, ANIMA.denoiser, dict(family.denoiser.config))["forward"].blocks
    assert not [record for record in caplog.records if record.name.startswith("diffusers")]


@pytest.mark.parametrize(("dtype", "least", "most"), [("bfloat16", 4.7, 6.2), ("int8", 3.0, 4.6)])
def test_the_published_model_needs_the_known_memory_at_1024_px(dtype: str, least: float, most: float) -> None:
    """AnimaLoraStudio (issue 498) measured 5.2 GB with bf16 weights."""
    parts = {"transformer": {"dtype": dtype, "checkpointing": "block"}, "text_encoder": {"dtype": dtype}}
    tree = {"model": {"family": "anima", "base_model": "circlestone-labs/Anima-Base-v1.0-Diffusers"}, "parts": parts}
    tree |= {"training": {"precision": "bfloat16"}, "data": {"resolution_px": [1024]}}
    estimate = memory_estimate(decode({"darkroom_version": 7, **tree}).config, {Size(1024, 1024): 10})
    assert estimate is not None
    training = estimate.phase("training")
    assert training is not None
    assert least < training.total_bytes / 1e9 < most
