"""Z-Image at toy size does what every family does: a flow-matching transformer with a Qwen3 and a VAE with a shift."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from modules.config.codec import decode, encode
from modules.config.rules import RULES
from modules.config.schema import Config
from modules.data.buckets import Size
from modules.families.kinds.identify import identify, who_loads_file
from modules.families.parts.attention_processor import set_attention
from modules.families.protocol import PartMemory
from modules.families.z_image.forward import ZImage
from modules.families.z_image.spec import Z_IMAGE
from modules.formats.peft_settings import PEFT_SETTINGS
from modules.formats.safetensors_io import read_safetensors
from modules.memory.compiled_blocks import Compilation
from modules.sampling.denoising_loop import initial_noise, run_denoising_loop, scheduler_for
from modules.sampling.prediction import guided_prediction
from modules.sampling.registry import samplers_for
from modules.system.devices import CPU, Device
from tests.builders.configs import laid_over, small_config
from tests.builders.pipelines import load_tiny
from tests.builders.runs import Ran, assert_equal_tensors, run
from tests.builders.z_image import z_image_pipeline
from trainer.__main__ import main
from trainer.events import BackupSaved, SampleReady, StepFinished, ValidationFinished
from trainer.preflight import check
from trainer.preflight.budget import memory_estimate
from ui.forms.records import groups_of, inline_records

BASE: dict[str, Any] = {
    "data": {"latent_cache": True, "text_cache": True},
    "training": {
        "epochs": 2,
        "batch_size": 2,
        "learning_rate": 0.01,
        "noise": {"distribution": "logit_normal", "dynamic_shift": False},
    },
    "output": {"dtype": "float32", "format": "diffusers"},
}
PROMPT = {"prompt": "a disc", "width_px": 64, "height_px": 64, "steps": 2, "guidance": 2.0}
SIZE = Size(64, 64)


@pytest.fixture(scope="module")
def model(tiny_z_image: Path) -> Path:
    return tiny_z_image


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the shared run keeps its caches, which later runs use."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def config(model: Path, folder: Path, images: Path) -> Config:
    return laid_over(small_config(folder, model=model, images=images), BASE)


@pytest.fixture(scope="module")
def watched(config: Config) -> Config:
    """The config of the shared run: a LoRA, validated, sampled, with backups."""
    images = config.concepts[0].path
    return laid_over(
        config,
        {
            "concepts": [{"path": images}, {"path": images, "kind": "validation"}],
            "validation": {"every": {"n": 1, "unit": "epoch"}, "num_timesteps": 2},
            "sampling": {"at_end": True, "prompts": [{**PROMPT, "sampler": s} for s in samplers_for(["flow"])]},
            "backup": {"every": {"n": 3, "unit": "step"}, "keep": 0},
        },
    )


@pytest.fixture(scope="module")
def ran(watched: Config) -> Ran:
    return run(watched)


@pytest.fixture
def family(model: Path) -> ZImage:
    family: ZImage = load_tiny(model, Z_IMAGE.name)
    return family


def losses(ran: Ran) -> list[float]:
    return [e.loss for e in ran.of(StepFinished)]


# -- runs


def test_it_passes_every_check(watched: Config) -> None:
    assert not check(watched).errors
    assert not [p for rule in RULES for p in rule(watched) if p.severity == "error"]


def test_it_caches_trains_validates_samples_and_saves_a_lora(ran: Ran, folder: Path) -> None:
    assert len(set(losses(ran))) == len(losses(ran))
    scores = [e.loss for e in ran.of(ValidationFinished)]
    assert scores[-1] < scores[0]
    samples = ran.of(SampleReady)
    assert len(samples) == len(samplers_for(["flow"]))
    assert {Image.open(sample.path).size for sample in samples} == {(64, 64)}
    lora = Path(ran.finished.model_path)
    names = read_safetensors(lora)[0]
    assert "transformer.layers.1.attention.to_out.0.lora_A.weight" in names
    assert not [
        name for name in names if not name.startswith("transformer.layers.")
    ]  # the preset leaves the others out
    kind = identify(lora)
    assert (kind.kind, kind.family, kind.facts["form"]) == ("lora", Z_IMAGE.name, "diffusers")
    shapes = {tuple(t.shape) for f in (folder / "cache" / "latents").rglob("*.safetensors") for t in tensors_in(f)}
    assert {shape[0] for shape in shapes} == {16}
    lengths = {t.shape[1] for f in (folder / "cache" / "text").rglob("*.safetensors") for t in tensors_in(f)}
    assert len(lengths) > 1  # the real tokens alone


def tensors_in(file: Path) -> list[torch.Tensor]:
    return list(read_safetensors(file)[0].values())


def test_a_resumed_run_ends_the_same(ran: Ran, watched: Config) -> None:
    first = Path(ran.of(BackupSaved)[0].path)
    resumed = run(watched, resume_from=first)
    assert_equal_tensors(resumed.weights, ran.weights)
    assert losses(ran)[-len(losses(resumed)) :] == losses(resumed)


def test_cached_latents_and_text_train_as_fresh_ones(ran: Ran, watched: Config) -> None:
    fresh = run(laid_over(watched, {"data": {"latent_cache": False, "text_cache": False}}))
    assert losses(fresh) == losses(ran)


def test_a_lokr_trains_and_a_lora_of_any_form_continues(config: Config, ran: Ran, tmp_path: Path) -> None:
    output = {"format": "kohya", "destination": str(tmp_path / "other.safetensors")}
    once: dict[str, Any] = {"training": {"epochs": 1}, "output": output}
    tree = encode(laid_over(config, once))
    lokr = run(decode({**tree, "adapter": {"name": "lokr", "rank": 2, "factor": 4}}).config)
    kind = identify(Path(lokr.finished.model_path))
    assert (kind.kind, kind.family) == ("lora", Z_IMAGE.name)
    written = Path(ran.finished.model_path)
    continued = []
    for file in (written, in_comfy_names(written, tmp_path / "comfy.safetensors")):
        further = laid_over(config, {**once, "adapter": {"start_from": str(file)}})
        assert not check(further).errors
        continued.append(losses(run(further)))
    assert continued[0][0] != losses(ran)[0]
    assert continued[0] == continued[1]


def test_a_fine_tune_is_a_folder_that_loads_again(config: Config, tmp_path: Path) -> None:
    tuned = {
        "training": {"trains": "full", "learning_rate": 1e-3, "epochs": 1},
        "output": {"model_format": "diffusers", "destination": str(tmp_path / "tuned")},
    }
    saved = Path(run(laid_over(config, tuned)).finished.model_path)
    assert identify(saved).model == Z_IMAGE.name
    assert json.loads((saved / "model_index.json").read_text())["tokenizer"] == [
        "transformers",
        "PreTrainedTokenizerFast",
    ]
    assert json.loads((saved / "scheduler" / "scheduler_config.json").read_text())["shift"] == 3.0
    again = laid_over(config, {"model": {"base_model": str(saved)}, "training": {"epochs": 1}})
    assert losses(run(again))


def test_captions_beyond_the_tokens_that_are_read_are_reported(config: Config, images: Path, tmp_path: Path) -> None:
    folder = tmp_path / "images"
    shutil.copytree(images, folder)
    (folder / "000.txt").write_text("a" * 520)
    problems = check(laid_over(config, {"concepts": [{"path": str(folder)}]})).problems
    [long] = [p for p in problems if "longer than the 504 tokens that the model reads" in p.message]
    assert (long.path, long.severity) == ("concepts", "warning")
    assert long.message.startswith("1 of")


@pytest.mark.daily(1)
@pytest.mark.parametrize("adapter", [{"name": "loha"}, {"name": "oft"}, {"name": "lora", "decompose": True}])
def test_other_adapters_train_on_every_layer(config: Config, tmp_path: Path, adapter: dict[str, Any]) -> None:
    output = {"format": "kohya", "destination": str(tmp_path / "other.safetensors")}
    tree = encode(laid_over(config, {"training": {"epochs": 1}, "output": output}))
    ran = run(decode({**tree, "adapter": {**adapter, "layers": "all"}}).config)
    names = {name.partition(".")[0] for name in read_safetensors(Path(ran.finished.model_path))[0]}
    assert {"lora_unet_cap_embedder_1", "lora_unet_noise_refiner_0_attention_to_q"} <= names


def test_masked_training_and_prior_preservation(config: Config, images: Path, tmp_path: Path) -> None:
    folder = tmp_path / "images"
    shutil.copytree(images, folder)
    for file in folder.glob("*.png"):
        mask = Image.new("L", Image.open(file).size)
        mask.paste(255, (0, 0, 32, 32))
        mask.save(folder / f"{file.stem}-masklabel.png")
    masks = {"enabled": True, "prior_preservation_weight": 0.5}
    assert losses(run(laid_over(config, {"masks": masks, "concepts": [{"path": str(folder)}]})))


def test_its_lora_is_resized_merged_and_extracted(ran: Ran, model: Path, tmp_path: Path) -> None:
    small, merged, back = (tmp_path / name for name in ("small.safetensors", "merged", "back.safetensors"))
    lora = Path(ran.finished.model_path)
    assert main(["lora-resize", str(lora), str(small), "--rank", "1"]) == 0
    assert main(["lora-merge", str(model), str(merged), str(lora)]) == 0
    assert main(["lora-extract", str(model), str(merged), str(back), "--rank", "2"]) == 0
    assert {identify(file).family for file in (small, merged, back)} == {Z_IMAGE.name}


def in_comfy_names(lora: Path, file: Path) -> Path:
    """Write a LoRA as other trainers do for ComfyUI, with alphas: `diffusion_model.` and diffusers' names."""
    tensors, metadata = read_safetensors(lora)
    named = {name.replace("transformer.", "diffusion_model.", 1): tensor for name, tensor in tensors.items()}
    alphas = {n.replace("lora_A.weight", "alpha"): torch.tensor(2.0) for n in named if n.endswith("lora_A.weight")}
    kept = {name: text for name, text in metadata.items() if name != PEFT_SETTINGS}
    save_file(named | alphas, file, kept)
    return file


@torch.no_grad()
def test_its_lora_is_loaded_by_diffusers_in_every_form(ran: Ran, model: Path, family: ZImage, tmp_path: Path) -> None:
    """diffusers' own loader and a merged model give the same prediction, as the table of programs states."""
    written, kohya = Path(ran.finished.model_path), tmp_path / "kohya.safetensors"
    assert main(["convert", str(written), str(kohya), "--to", "kohya"]) == 0
    forms = written, kohya, in_comfy_names(written, tmp_path / "comfy.safetensors")
    merged = tmp_path / "merged"
    assert main(["lora-merge", str(model), str(merged), str(written)]) == 0
    ours: ZImage = load_tiny(merged, Z_IMAGE.name)
    text = ours.encode_prompts(["a disc"])
    noisy = torch.randn(1, 16, 8, 8, generator=torch.Generator().manual_seed(5))
    plain, tuned = (f.predict(noisy, torch.tensor([500.0]), text) for f in (family, ours))
    assert not torch.allclose(plain, tuned, atol=1e-3)
    pipe = z_image_pipeline(model, family)
    for file in forms:
        pipe.load_lora_weights(file)
        theirs = family.predict(noisy, torch.tensor([500.0]), text)
        torch.testing.assert_close(theirs, tuned, rtol=1e-4, atol=1e-5)
        pipe.unload_lora_weights()
        answers = {x.program: x.loads for x in who_loads_file(file)[1]}
        assert (answers["diffusers"], answers["ComfyUI"]) == ("all", "unknown")  # with ComfyUI nothing was measured


@pytest.mark.daily(2)
@pytest.mark.parametrize("dtype", ["int8", "nfloat4", "float8"])
def test_it_trains_on_quantized_weights(config: Config, dtype: str) -> None:
    quantized = {"transformer": {"dtype": dtype}, "text_encoder": {"dtype": dtype}}
    trained = laid_over(config, {"parts": quantized, "training": {"epochs": 1}})
    assert not check(trained).errors
    assert losses(run(trained))


def test_it_is_shown_in_the_forms(config: Config) -> None:
    assert [g.title for g in groups_of(config, ("parts",))] == ["Transformer", "Text encoder (Qwen3)", "VAE"]
    [choice] = groups_of(config, ("model.family",))[0].records
    assert [record.path for record in inline_records(config, choice)] == []


# -- bad input


def errors_of(config: Config, **sections: Any) -> dict[str, str]:
    return {p.path: p.message for p in check(laid_over(config, sections)).errors}


def test_float16_is_refused(config: Config) -> None:
    for sections in ({"training": {"precision": "float16"}}, {"parts": {"transformer": {"dtype": "float16"}}}):
        [message] = errors_of(config, **sections).values()
        assert message.startswith("The transformer of Z-Image overflows in float16")


@pytest.mark.parametrize(
    ("name", "is_distilled"), [("Z-Image", False), ("Z-Image-Turbo", True), ("Z-Image-De-Turbo", False)]
)
def test_turbo_alone_is_distilled(config: Config, name: str, is_distilled: bool) -> None:
    problems = check(laid_over(config, {"model": {"base_model": f"someone/{name}"}})).problems
    assert any("seems to be a distilled model" in p.message for p in problems) is is_distilled


def test_a_model_without_its_tokenizer_is_refused(config: Config, model: Path, tmp_path: Path) -> None:
    copy = tmp_path / "model"
    shutil.copytree(model, copy, ignore=shutil.ignore_patterns("tokenizer"))
    assert "its tokenizer is missing" in errors_of(config, model={"base_model": str(copy)})["model.base_model"]


def test_a_vae_of_another_family_is_refused(config: Config, tiny_sd: Path) -> None:
    message = errors_of(config, model={"vae_file": str(tiny_sd / "vae")})["model.vae_file"]
    assert message.endswith("is a VAE with 4 latent channels; Z-Image needs 16.")


# -- gradients


def test_the_memory_of_a_run_is_estimated(config: Config) -> None:
    one, four = (memory_estimate(laid_over(config, {"training": {"batch_size": n}}), {Size(64, 64): 4}) for n in (1, 4))
    assert one is not None
    assert four is not None
    activations = [estimate.peak.bytes_of("activations") for estimate in (one, four)]
    assert 0 < 3 * activations[0] < activations[1] < 5 * activations[0]


def gradients(family: ZImage, memory: PartMemory) -> dict[str, torch.Tensor]:
    """The gradients of a loss, with the memory settings of the transformer."""
    family.denoiser.requires_grad_(True)
    family.denoiser.zero_grad()
    family.set_memory({"transformer": memory}, train_device=CPU, temp_device=Device("cpu:1"))
    text = family.encode_prompts(["a disc", "a disc and a very long square"])
    noisy = torch.randn(2, 16, 8, 8, generator=torch.Generator().manual_seed(0))
    family.predict(noisy, torch.tensor([250.0, 700.0]), text).square().mean().backward()
    return {n: p.grad.clone() for n, p in family.denoiser.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(
    "memory",
    [
        PartMemory("block"),
        PartMemory("whole"),
        PartMemory("transformer", offload_activations=True),
        PartMemory("block", offload_fraction=0.5),
    ],
    ids=["block", "whole", "activations", "layers"],
)
def test_gradients_are_those_of_a_plain_pass(family: ZImage, memory: PartMemory) -> None:
    assert_equal_tensors(gradients(family, memory), gradients(family, PartMemory()))


class LastBlock(Compilation):
    """Compiles one main block, which takes a second."""

    def compile_in_place(self, blocks: Sequence[torch.nn.Module]) -> None:
        super().compile_in_place(blocks[-1:])


def test_a_compiled_block_has_the_same_gradients(family: ZImage) -> None:
    plain = gradients(family, PartMemory())
    compilation = LastBlock(iter(range(1_000_000)).__next__, backend="aot_eager")
    compiled = gradients(family, PartMemory("block", compilation=compilation))
    assert not compilation.failure
    torch.testing.assert_close(compiled, plain, rtol=1e-4, atol=1e-6)
    torch.compiler.reset()


# -- parity


def test_a_batch_of_two_lengths_is_two_batches_of_one(family: ZImage) -> None:
    text = family.encode_prompts(["a", "a very much longer prompt of a disc"])
    noisy = torch.randn(2, 16, 8, 8, generator=torch.Generator().manual_seed(1))
    timesteps = torch.tensor([200.0, 800.0])
    with torch.no_grad():
        both = family.predict(noisy, timesteps, text)
        alone = [family.predict(noisy[i : i + 1], timesteps[i : i + 1], text.select([i])) for i in (0, 1)]
    torch.testing.assert_close(both, torch.cat(alone), rtol=1e-5, atol=2e-5)
    assert family.join([text.select([1]), text.select([0])], text).lengths == text.lengths[::-1]


def test_an_empty_prompt_goes_through_the_template(family: ZImage) -> None:
    empty = family.encode_prompts([""])
    assert empty.lengths == (len("user\n\nassistant\n") + 3,)
    dropped = family.with_empty_prompts(family.encode_prompts(["a disc", "b"]), [{0}, set()], empty)
    assert dropped.lengths == (empty.lengths[0], empty.lengths[0] + 1)
    assert torch.equal(dropped.split()[0], empty.states_BLD[0])


@torch.no_grad()
def test_a_sample_is_that_of_diffusers_pipeline(model: Path, family: ZImage) -> None:
    """Text, every denoising step and the decoded image."""
    pipe = z_image_pipeline(model, family)
    prompt = "a disc"
    noise, generator = initial_noise((1, 16, 8, 8), seed=3, device=CPU)
    theirs_text = pipe.encode_prompt([prompt], do_classifier_free_guidance=False, max_sequence_length=512)[0]
    text = family.encode_prompts([prompt])
    torch.testing.assert_close(text.split()[0], theirs_text[0], rtol=1e-5, atol=1e-5)
    options = {"num_inference_steps": 4, "guidance_scale": 0.0, "height": 64, "width": 64}
    theirs = pipe([prompt], latents=noise, output_type="latent", **options).images
    predict = guided_prediction(family, text, None, size=SIZE, guidance=1.0)
    scheduler = scheduler_for(family, "euler", SIZE)
    latents = run_denoising_loop(predict, scheduler, noise, num_steps=4, generator=generator, on_step=lambda: None)
    torch.testing.assert_close(latents, theirs, rtol=1e-5, atol=1e-5)
    image = pipe([prompt], latents=noise, output_type="pt", **options).images
    torch.testing.assert_close((family.decode(latents) / 2 + 0.5).clamp(0, 1), image, rtol=1e-5, atol=1e-5)


def test_one_euler_step_with_the_true_velocity_returns_the_image(family: ZImage) -> None:
    generator = torch.Generator().manual_seed(2)
    clean, noise = (torch.randn(2, 16, 8, 8, generator=generator) for _ in range(2))
    timesteps = torch.tensor([300.0, 900.0])
    noisy = family.process.add_noise(clean, noise, timesteps)
    velocity = family.process.target(clean, noise, timesteps)
    sigma = family.process.sigma(timesteps)[:, None, None, None]
    torch.testing.assert_close(noisy + (0.0 - sigma) * velocity, clean, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_attention_implementations_agree(family: ZImage) -> None:
    text = family.encode_prompts(["a", "a longer prompt"])
    noisy = torch.randn(2, 16, 8, 8, generator=torch.Generator().manual_seed(1))
    before = family.predict(noisy, torch.tensor([200.0, 800.0]), text)
    set_attention(family.denoiser, Z_IMAGE.denoiser.model, "sdpa_math", device=CPU, dtype=torch.float32)
    after = family.predict(noisy, torch.tensor([200.0, 800.0]), text)
    torch.testing.assert_close(after, before, rtol=1e-5, atol=1e-5)
