"""What every flow family must pass, on the tiny model of each: a run with all that a run has, files, memory, bad input.

A family joins with one line in `tests/builders/flow_models.py`. A saved LoRA is loaded by diffusers in every form that
it reads; `tests/parity/test_flow_pipelines.py` compares text and samples with its pipelines.
"""

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
from modules.families.kinds.lora import LORA
from modules.families.protocol import ModelFamily, PartMemory
from modules.formats.safetensors_io import read_safetensors
from modules.memory.compiled_blocks import Compilation
from modules.sampling.registry import samplers_for
from modules.system.devices import CPU, Device
from tests.builders.configs import laid_over, small_config
from tests.builders.flow_models import FLOW_MODELS, FlowModel, flow_model
from tests.builders.images import draw_folder
from tests.builders.pipelines import load_tiny
from tests.builders.runs import Ran, assert_equal_tensors, run
from trainer.__main__ import main
from trainer.events import BackupSaved, RewardMeasured, SampleReady, StepFinished, ValidationFinished
from trainer.preflight import check
from trainer.preflight.run_budget import memory_estimate
from ui.forms.records import groups_of

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


@pytest.fixture(scope="module", params=FLOW_MODELS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def tiny(name: str) -> FlowModel:
    return flow_model(name)


@pytest.fixture(scope="module")
def model(request: pytest.FixtureRequest, name: str) -> Path:
    folder: Path = request.getfixturevalue(name)
    return folder


@pytest.fixture(scope="module")
def folder(name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the shared run keeps its caches, which later runs of this model use."""
    return tmp_path_factory.mktemp(name)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of two shapes, with captions of different lengths."""
    captions = ["a disc", "a disc, red, in front of a wall of large stones", "two squares"]
    sizes = [(64, 64)] * 3 + [(96, 64)] * 2
    return draw_folder(tmp_path_factory.mktemp("images"), sizes=sizes, captions=captions)


@pytest.fixture(scope="module")
def config(model: Path, tiny: FlowModel, folder: Path, images: Path) -> Config:
    parts = {name: {"train": False} for name in tiny.untrained}
    own = {"model": {"family": dict(tiny.settings)}, "parts": parts}
    return laid_over(small_config(folder, model=model, images=images), {**BASE, **own})


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
def family(model: Path, tiny: FlowModel) -> ModelFamily:
    family: ModelFamily = load_tiny(model, tiny.family)
    return family


def noise_of(tiny_or_family: FlowModel | ModelFamily, *, batch: int, seed: int) -> torch.Tensor:
    """Latents of images of 64 px."""
    shape = tiny_or_family.spec.latents.shape(64, 64)
    return torch.randn(batch, *shape, generator=torch.Generator().manual_seed(seed))


def denoiser_of(family: ModelFamily) -> torch.nn.Module:
    return family.parts[family.spec.denoiser.name].module


def linear_layers(family: ModelFamily) -> set[str]:
    """The layers of the denoiser that an adapter can train."""
    part = family.parts[family.spec.denoiser.name]
    return {n for n, m in part.module.named_modules() if isinstance(m, torch.nn.Linear) and part.reaches(n)}


def losses(ran: Ran) -> list[float]:
    return [e.loss for e in ran.of(StepFinished)]


# -- runs


def test_it_passes_every_check(watched: Config) -> None:
    assert not check(watched).errors
    assert not [p for rule in RULES for p in rule(watched) if p.severity == "error"]


def test_it_caches_trains_validates_samples_and_saves_a_lora(
    ran: Ran, folder: Path, tiny: FlowModel, family: ModelFamily
) -> None:
    assert len(set(losses(ran))) == len(losses(ran))
    scores = [e.loss for e in ran.of(ValidationFinished)]
    assert scores[-1] < scores[0]
    samples = ran.of(SampleReady)
    assert len(samples) == len(samplers_for(["flow"]))
    assert {Image.open(sample.path).size for sample in samples} == {(64, 64)}
    lora = Path(ran.finished.model_path)
    denoiser = tiny.spec.denoiser
    trained = {name.partition(".lora_")[0] for name in read_safetensors(lora)[0]}
    chosen = {f"{denoiser.name}.{n}" for n in linear_layers(family) if denoiser.model.layers["attention_mlp"].takes(n)}
    assert {name for name in trained if name.startswith(f"{denoiser.name}.")} == chosen  # the default preset
    kind = identify(lora)
    assert (kind.kind, kind.family, kind.facts["form"]) == ("lora", tiny.family, "diffusers")
    shapes = {tuple(t.shape) for f in (folder / "cache" / "latents").rglob("*.safetensors") for t in tensors_in(f)}
    assert {shape[0] for shape in shapes} == {tiny.spec.latents.channels}
    entries = [read_safetensors(file)[0] for file in (folder / "cache" / "text").rglob("*.safetensors")]
    assert (len({entry["states"].shape[1] for entry in entries}) == 1) is tiny.attends_to_padding  # or real ones alone


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


def test_a_lokr_trains_and_a_lora_of_any_form_continues(
    config: Config, ran: Ran, tiny: FlowModel, tmp_path: Path
) -> None:
    output = {"format": "kohya", "destination": str(tmp_path / "other.safetensors")}
    once: dict[str, Any] = {"training": {"epochs": 1}, "output": output}
    tree = encode(laid_over(config, once))
    lokr = run(decode({**tree, "adapter": {"name": "lokr", "rank": 2, "factor": 4}}).config)
    kind = identify(Path(lokr.finished.model_path))
    assert (kind.kind, kind.family) == ("lora", tiny.family)
    continued = []
    for file in in_every_form(Path(ran.finished.model_path), tiny, tmp_path):
        further = laid_over(config, {**once, "adapter": {"start_from": str(file)}})
        assert not check(further).errors
        continued.append(losses(run(further)))
    assert continued[0][0] != losses(ran)[0]
    assert all(one == pytest.approx(continued[0], rel=1e-5) for one in continued)


def in_every_form(lora: Path, tiny: FlowModel, folder: Path) -> list[Path]:
    """A LoRA in all forms that the program writes, and in those of other programs."""
    files = [folder / f"{form}.safetensors" for form in LORA.forms]
    for form, file in zip(LORA.forms, files, strict=True):
        assert main(["convert", str(lora), str(file), "--to", form]) == 0
    return [*files, *tiny.other_forms(lora, folder)]


def test_a_fine_tune_is_a_folder_that_loads_again(config: Config, model: Path, tiny: FlowModel, tmp_path: Path) -> None:
    tuned = {
        "training": {"trains": "full", "learning_rate": 1e-3, "epochs": 1},
        "output": {"model_format": "diffusers", "destination": str(tmp_path / "tuned")},
    }
    saved = Path(run(laid_over(config, tuned)).finished.model_path)
    assert identify(saved).family == tiny.family
    index = json.loads((saved / "model_index.json").read_text())
    for tokenizer in (folder.name for folder in model.glob("tokenizer*")):
        settings = json.loads((saved / tokenizer / "tokenizer_config.json").read_text())
        assert index[tokenizer] == ["transformers", settings["tokenizer_class"]]
    scheduler = Path("scheduler") / "scheduler_config.json"
    before, after = (json.loads((folder / scheduler).read_text()) for folder in (model, saved))
    assert before.items() <= after.items()
    again = laid_over(config, {"model": {"base_model": str(saved)}, "training": {"epochs": 1}})
    assert losses(run(again))


def test_captions_beyond_the_tokens_that_are_read_are_reported(
    config: Config, images: Path, tiny: FlowModel, tmp_path: Path
) -> None:
    folder = tmp_path / "images"
    shutil.copytree(images, folder)
    tokens = config.model.family.tokens_read(tiny.spec.text.chunk_tokens, {})
    (folder / "000.txt").write_text("a " * (tokens + 8))
    problems = check(laid_over(config, {"concepts": [{"path": str(folder)}]})).problems
    [long] = [p for p in problems if f"longer than the {tokens} tokens that the model reads" in p.message]
    assert (long.path, long.severity) == ("concepts", "warning")
    assert long.message.startswith("1 of")


@pytest.mark.daily(1)
@pytest.mark.parametrize("adapter", [{"name": "loha"}, {"name": "oft"}, {"name": "lora", "decompose": True}])
def test_other_adapters_train_on_every_layer(
    config: Config, family: ModelFamily, tmp_path: Path, adapter: dict[str, Any]
) -> None:
    output = {"format": "kohya", "destination": str(tmp_path / "other.safetensors")}
    tree = encode(laid_over(config, {"training": {"epochs": 1}, "output": output}))
    ran = run(decode({**tree, "adapter": {**adapter, "layers": "all"}}).config)
    denoiser = family.spec.denoiser.name
    idle = [n for n in linear_layers(family) if not any(w.startswith(f"{denoiser}.{n}.") for w in ran.weights)]
    assert not idle
    assert identify(Path(ran.finished.model_path)).family == family.spec.name


@pytest.mark.daily(1)
def test_masked_training_and_prior_preservation(config: Config, images: Path, tmp_path: Path) -> None:
    folder = tmp_path / "images"
    shutil.copytree(images, folder)
    for file in folder.glob("*.png"):
        mask = Image.new("L", Image.open(file).size)
        mask.paste(255, (0, 0, 32, 32))
        mask.save(folder / f"{file.stem}-masklabel.png")
    once: dict[str, Any] = {"concepts": [{"path": str(folder)}], "training": {"epochs": 1}}
    plain, masked, preserved = (
        losses(run(laid_over(config, {**once, "masks": masks})))[0]
        for masks in ({}, {"enabled": True}, {"enabled": True, "prior_preservation_weight": 0.5})
    )
    assert masked < plain
    assert preserved == masked  # before the first update the model is as it was


@pytest.mark.daily(1)
def test_prior_prediction_keeps_what_the_model_predicts(config: Config, images: Path) -> None:
    """The half of the images whose target is the model's own prediction has hardly a loss in the first epoch."""
    learned, mixed = (
        sum(
            losses(
                run(
                    laid_over(
                        config,
                        {
                            "concepts": [{"path": str(images)}, {"path": str(images), "kind": kind}],
                            "training": {"epochs": 1, "learning_rate": 1e-5},
                        },
                    )
                )
            )
        )
        for kind in ("training", "prior_prediction")
    )
    assert mixed == pytest.approx(learned / 2, rel=0.2)


@pytest.mark.daily(1)
def test_a_config_without_any_of_its_keys_loads(watched: Config) -> None:
    """One of the seeds' failures: a config of another version without a key ended a run with a KeyError."""
    tree = encode(watched)
    for section in ("general", "model", "parts", "data", "training", "sampling", "validation", "output"):
        for key in tree[section]:
            lacking = {**tree, section: {k: v for k, v in tree[section].items() if k != key}}
            assert not [p for p in decode(lacking).problems if p.severity == "error"], (section, key)


def test_its_lora_is_resized_merged_and_extracted(ran: Ran, model: Path, tiny: FlowModel, tmp_path: Path) -> None:
    small, merged, back = (tmp_path / name for name in ("small.safetensors", "merged", "back.safetensors"))
    lora = Path(ran.finished.model_path)
    assert main(["lora-resize", str(lora), str(small), "--rank", "1"]) == 0
    assert main(["lora-merge", str(model), str(merged), str(lora)]) == 0
    assert main(["lora-extract", str(model), str(merged), str(back), "--rank", "2"]) == 0
    assert {identify(file).family for file in (small, merged, back)} == {tiny.family}


@torch.no_grad()
def test_its_lora_is_loaded_by_diffusers_in_every_form(
    ran: Ran, model: Path, tiny: FlowModel, family: ModelFamily, tmp_path: Path
) -> None:
    """diffusers' own loader and a merged model give the same prediction, as the table of programs states."""
    written, merged = Path(ran.finished.model_path), tmp_path / "merged"
    assert main(["lora-merge", str(model), str(merged), str(written)]) == 0
    ours: ModelFamily = load_tiny(merged, tiny.family)
    text, noisy, timesteps = family.encode_prompts(["a disc"]), noise_of(tiny, batch=1, seed=5), torch.tensor([500.0])
    plain, tuned = (f.predict(noisy, timesteps, text) for f in (family, ours))
    assert not torch.allclose(plain, tuned, atol=1e-3)
    pipe = tiny.pipeline(model, family)
    for file in (f for f in (written, *in_every_form(written, tiny, tmp_path)) if f.stem not in tiny.unread):
        assert {x.program: x.loads for x in who_loads_file(file)[1]}["diffusers"] == "all"
        pipe.load_lora_weights(file)
        theirs = family.predict(noisy, timesteps, text)
        torch.testing.assert_close(theirs, tuned, rtol=1e-4, atol=1e-5)
        pipe.unload_lora_weights()


@pytest.mark.daily(2)
@pytest.mark.parametrize("dtype", ["int8", "nfloat4", "float8"])
def test_it_trains_on_quantized_weights(config: Config, tiny: FlowModel, dtype: str) -> None:
    spec = tiny.spec
    frozen = {name: {"dtype": dtype, "train": False} for name in spec.names_of("text_encoder")}
    parts = {spec.denoiser.name: {"dtype": dtype}, **frozen}
    trained = laid_over(config, {"parts": parts, "training": {"epochs": 1}})
    assert not check(trained).errors
    assert losses(run(trained))


def test_it_is_shown_in_the_forms(config: Config, tiny: FlowModel) -> None:
    assert [g.title for g in groups_of(config, ("parts",))] == [part.label for part in tiny.spec.parts]


# -- bad input


def errors_of(config: Config, **sections: Any) -> dict[str, str]:
    return {p.path: p.message for p in check(laid_over(config, sections)).errors}


def test_a_model_without_its_tokenizers_is_refused(config: Config, model: Path, tmp_path: Path) -> None:
    copy = tmp_path / "model"
    shutil.copytree(model, copy, ignore=shutil.ignore_patterns("tokenizer*"))
    assert "its tokenizer is missing" in errors_of(config, model={"base_model": str(copy)})["model.base_model"]


def test_a_vae_of_another_family_is_refused(config: Config, tiny: FlowModel, tiny_sd: Path) -> None:
    message = errors_of(config, parts={"vae": {"file": str(tiny_sd / "vae")}})["parts.vae.file"]
    needed = f"{tiny.spec.label} needs {tiny.spec.latents.channels}."
    assert message.endswith(f"is a VAE with 4 latent channels; {needed}")


def test_a_model_of_another_family_is_refused(config: Config, tiny: FlowModel, tiny_sd: Path) -> None:
    """As with the preset of one family and the model of another."""
    message = errors_of(config, model={"base_model": str(tiny_sd)})["model.base_model"]
    assert message.endswith(f"is a StableDiffusionPipeline, not a {tiny.spec.label} model.")


def test_a_denoiser_alone_is_no_base_model(config: Config, model: Path, tiny: FlowModel, tmp_path: Path) -> None:
    alone = tmp_path / "alone.safetensors"
    shutil.copyfile(model / tiny.spec.denoiser.name / "diffusion_pytorch_model.safetensors", alone)
    assert "alone.safetensors" in errors_of(config, model={"base_model": str(alone)})["model.base_model"]


def test_a_lora_of_another_family_is_refused(config: Config, tmp_path: Path) -> None:
    file, layer = tmp_path / "sd.safetensors", "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn1_to_q"
    factors = {"lora_down.weight": torch.ones(2, 320), "lora_up.weight": torch.ones(320, 2), "alpha": torch.tensor(2.0)}
    save_file({f"{layer}.{name}": tensor for name, tensor in factors.items()}, file)
    message = errors_of(config, adapter={"start_from": str(file)})["adapter.start_from"]
    assert "is for another model family" in message
    assert "Stable Diffusion" in message


def test_a_text_encoder_of_another_size_is_refused(
    config: Config, model: Path, tiny: FlowModel, tmp_path: Path
) -> None:
    for encoder, (key, _) in tiny.spec.text.widths.items():
        copy = tmp_path / encoder
        shutil.copytree(model, copy)
        file = copy / encoder / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), key: 4096}))
        message = errors_of(config, model={"base_model": str(copy)})["model.base_model"]
        assert "has states of width 4096; its" in message


# -- gradients


def test_the_memory_of_a_run_is_estimated(config: Config) -> None:
    estimates = [  # so many images that the peak is not that of the text encoders
        memory_estimate(laid_over(config, {"training": {"batch_size": n}}), {Size(64, 64): 16}) for n in (4, 16)
    ]
    activations = [estimate.peak.bytes_of("activations") for estimate in estimates if estimate is not None]
    assert 0 < 3 * activations[0] < activations[1] < 5 * activations[0]


def gradients(family: ModelFamily, memory: PartMemory) -> dict[str, torch.Tensor]:
    """The gradients of a loss, with the memory settings of the transformer."""
    denoiser = denoiser_of(family)
    denoiser.requires_grad_(True)
    denoiser.zero_grad()
    family.set_memory({family.spec.denoiser.name: memory}, train_device=CPU, temp_device=Device("cpu:1"))
    text = family.encode_prompts(["a disc", "a disc and a very long square"])
    noisy = noise_of(family, batch=2, seed=0)
    family.predict(noisy, torch.tensor([250.0, 700.0]), text).square().mean().backward()
    return {n: p.grad.clone() for n, p in denoiser.named_parameters() if p.grad is not None}


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
def test_gradients_are_those_of_a_plain_pass(family: ModelFamily, memory: PartMemory) -> None:
    assert_equal_tensors(gradients(family, memory), gradients(family, PartMemory()))


class LastBlock(Compilation):
    """Compiles one main block, which takes a second."""

    def compile_in_place(self, blocks: Sequence[torch.nn.Module]) -> None:
        super().compile_in_place(blocks[-1:])


@pytest.mark.daily(1)
def test_a_compiled_block_has_the_same_gradients(family: ModelFamily) -> None:
    plain = gradients(family, PartMemory())
    compilation = LastBlock(iter(range(1_000_000)).__next__, backend="aot_eager")
    compiled = gradients(family, PartMemory("block", compilation=compilation))
    assert not compilation.failure
    torch.testing.assert_close(compiled, plain, rtol=1e-4, atol=1e-6)
    torch.compiler.reset()


# -- training on rewards


@pytest.mark.daily(1)
def test_alignprop_raises_the_reward(config: Config, tiny: FlowModel) -> None:
    method = {"name": "alignprop", "steps": 4, "backprop_steps": 2, "guidance": 2.0, "gradient_truncation": "fixed"}
    followed = laid_over(
        config,
        {
            "general": {"temp_device": "cpu:1", "debug_checks": True},
            "parts": {tiny.spec.denoiser.name: {"checkpointing": "block"}},
            "training": {"method": method, "epochs": 4, "learning_rate": 0.01},
            "reward": {"models": [{"kind": "brightness"}], "measure_every": {"n": 12, "unit": "step"}, "num_images": 4},
        },
    )
    assert not check(followed).errors
    before, after = (m.followed for m in run(followed).of(RewardMeasured))
    assert before is not None
    assert after is not None
    assert after > before + 0.02
