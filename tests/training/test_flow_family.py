"""The settings of a flow family: what has no form for flow models is refused, and the rest is as the model says."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest
import torch

from modules.config.previews import timestep_preview
from modules.config.rules import problems_of
from modules.config.schema import Config
from modules.data.buckets import Size
from modules.diffusion.flow import FlowProcess
from modules.diffusion.flow_convention import ConstantShift, TokenShift, flow_matching
from modules.diffusion.timesteps.drawing import BatchPosition, draw_timesteps
from modules.diffusion.training_noise import generalized_offset_factor
from modules.families.registry import registered
from modules.families.settings import FamilySettings
from modules.families.z_image.spec import CONVENTION, Z_IMAGE
from modules.sampling.ddim_step import ddim_steps
from modules.sampling.denoising_loop import scheduler_for
from modules.sampling.prediction import guided_prediction
from modules.sampling.registry import sampler_labels, samplers_for
from modules.system.devices import CPU
from modules.system.errors import DarkroomError
from tests.builders.configs import config_fixture, laid_over, small_config
from tests.builders.images import draw_folder
from tests.builders.pipelines import load_tiny
from tests.builders.runs import run
from trainer.events import SampleReady, StepFinished, ValidationFinished
from trainer.methods.build import require_process
from trainer.methods.denoise import denoise_of
from trainer.methods.noising import noising_of, size_shift
from trainer.preflight import check

BASE: dict[str, Any] = {
    "data": {"latent_cache": True, "text_cache": True},
    "training": {
        "epochs": 4,
        "batch_size": 2,
        "learning_rate": 0.01,
        "noise": {"distribution": "logit_normal", "dynamic_shift": True},
        "loss": {"weighting": "sigma"},
    },
    "parts": {"text_encoder": {"train": False}},
    "output": {"dtype": "float32"},
}


@pytest.fixture(scope="module")
def model(tiny_z_image: Path) -> Path:
    return tiny_z_image


config = config_fixture("model", BASE)


def of(config: Config, **sections: Any) -> dict[str, str]:
    """The errors of a config by path, and what they say."""
    return {p.path: p.message for p in problems_of(laid_over(config, sections)) if p.severity == "error"}


@pytest.mark.parametrize("name", ["min_snr", "soft_min_snr", "debiased", "p2"])
def test_weightings_without_a_meaning_are_refused(config: Config, name: str) -> None:
    found = of(config, training={"loss": {"weighting": name}})
    assert list(found) == ["training.loss.weighting"]
    assert "is not defined for flow matching models" in found["training.loss.weighting"]


def test_a_schedule_of_a_loss_without_a_meaning_is_refused(config: Config) -> None:
    huber = {"strength": 1.0, "schedule": "snr"}
    assert list(of(config, training={"loss": {"mix": {"huber": huber}}})) == ["training.loss.mix.huber.schedule"]
    assert not of(config, training={"loss": {"mix": {"huber": {**huber, "schedule": "exponential"}}}})
    assert not of(config, training={"loss": {"mix": {"huber": {**huber, "strength": 0.0}}}})


@pytest.mark.parametrize(
    ("method", "what"),
    [
        ({"name": "dpo", "loss": "mapo"}, "MaPO"),
        ({"name": "online_dpo", "pairs": "steps"}, "Online DPO on denoising steps (SPO)"),
    ],
)
def test_methods_of_ddpm_are_refused(config: Config, method: dict[str, Any], what: str) -> None:
    found = of(config, training={"method": method})
    assert found["training.method"] == f"{what} has no form for flow matching models yet."


@pytest.mark.parametrize(
    "method", [{"name": name} for name in ("dpo", "online_dpo", "alignprop", "ddpo", "grpo", "nft", "dgpo")]
)
def test_methods_with_a_flow_form_are_not(config: Config, method: dict[str, Any]) -> None:
    assert "training.method" not in of(config, training={"method": method})


def test_samplers_without_a_flow_form_are_refused(config: Config) -> None:
    prompts = [{"sampler": "ddim"}, {"sampler": "euler_a"}, {"sampler": "euler_karras", "enabled": False}]
    found = of(config, sampling={"prompts": prompts}, training={"method": {"name": "online_dpo", "sampler": "euler_a"}})
    assert {p for p in found if "sampler" in p} == {"sampling.prompts.1.sampler", "training.method.sampler"}


def test_generalized_offset_noise_is_refused(config: Config) -> None:
    noise = {"offset_weight": 0.1, "generalized_offset": True}
    assert list(of(config, training={"noise": noise})) == ["training.noise.generalized_offset"]


def test_the_engine_refuses_what_check_refuses(config: Config) -> None:
    """A model may turn out to be another one than its config says: nothing is trained with a formula of DDPM."""
    process = FlowProcess()
    context: Any = SimpleNamespace(family=SimpleNamespace(process=process))
    with pytest.raises(DarkroomError, match="Min-SNR is not defined"):
        denoise_of(laid_over(config, {"training": {"loss": {"weighting": "min_snr"}}}).training).prepare(context)
    with pytest.raises(DarkroomError, match="MaPO has no form"):
        require_process(laid_over(config, {"training": {"method": {"name": "dpo", "loss": "mapo"}}}).training, process)
    with pytest.raises(DarkroomError, match="Generalized offset noise is not defined"):
        generalized_offset_factor(process, torch.ones(2))
    with pytest.raises(DarkroomError, match="DDIM sampling needs a DDPM model"):
        ddim_steps(process, {}, num_steps=4)


class SizedSettings(FamilySettings):
    name: Literal["sized"] = "sized"


def test_the_chart_of_timesteps_has_the_shift_of_the_model(config: Config) -> None:
    convention = replace(CONVENTION, shift=TokenShift(16, 256))
    sized = replace(Z_IMAGE, name="sized", settings=SizedSettings, process=flow_matching(convention))
    with registered(sized):
        preview = timestep_preview(laid_over(config, {"model": {"family": "sized"}}))
        fixed = {"dynamic_shift": False, "shift": convention.shift_at(64, 64)}
        by_hand = laid_over(config, {"model": {"family": "sized"}, "training": {"noise": fixed}})
        assert preview.bars == timestep_preview(by_hand).bars
        assert preview.right == "1000: noise"


@pytest.mark.parametrize("noise", [{"dynamic_shift": False, "shift": 3.0}, {"dynamic_shift": True}, {"shift": 1.0}])
@pytest.mark.parametrize("shift", [ConstantShift(3.0), TokenShift()], ids=["constant", "by size"])
def test_the_chart_shows_how_training_draws(config: Config, noise: dict[str, Any], shift: Any) -> None:
    """As a fixed shift, as the rule of the size, and as the model's own rule where it has one."""
    sized = replace(
        Z_IMAGE, name="sized", settings=SizedSettings, process=flow_matching(replace(CONVENTION, shift=shift))
    )
    with registered(sized):
        sections = {"model": {"family": "sized"}, "data": {"resolution_px": [512]}, "training": {"noise": noise}}
        changed = laid_over(config, sections)
        bars = timestep_preview(changed).bars
    assert sized.process.flow is not None
    process, latents = FlowProcess(sized.process.flow), torch.zeros(1, *sized.latents.shape(512, 512))
    drawn = draw_timesteps(
        noising_of(changed.training.noise).timesteps,
        BatchPosition(step=0, micro_batch=0, num_samples=20_000),
        run_seed=1,
        num_timesteps=process.num_timesteps,
        device=CPU,
        is_continuous=True,
        size_shift=size_shift(process, latents, sized),
    )
    shares = torch.histc(drawn, bins=len(bars), min=0.0, max=1000.0) / len(drawn)
    torch.testing.assert_close(shares, torch.tensor(bars), rtol=0.0, atol=0.006)


@pytest.fixture(scope="module")
def sized_model(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose scheduler config derives the shift from the size of the image."""
    folder = tmp_path_factory.mktemp("models") / "sized"
    shutil.copytree(model, folder)
    file = folder / "scheduler" / "scheduler_config.json"
    sizes = {"base_image_seq_len": 16, "max_image_seq_len": 256, "base_shift": 0.5, "max_shift": 1.15}
    file.write_text(json.dumps({**json.loads(file.read_text()), "use_dynamic_shifting": True, **sizes}))
    return folder


@pytest.mark.full
def test_a_model_with_a_shift_by_size_trains_validates_and_samples_with_it(sized_model: Path, tmp_path: Path) -> None:
    """All of it as with the shift of this size as a setting; the samplers get it from the model in both runs."""
    images = draw_folder(tmp_path / "images", sizes=[(64, 64)] * 4)
    prompt = {"prompt": "a disc", "width_px": 64, "height_px": 64, "steps": 3, "guidance": 2.0}
    config = laid_over(
        small_config(tmp_path, model=sized_model, images=images),
        {
            **BASE,
            "training": {**BASE["training"], "epochs": 1},
            "concepts": [{"path": str(images)}, {"path": str(images), "kind": "validation"}],
            "validation": {"every": {"n": 1, "unit": "epoch"}, "num_timesteps": 2},
            "sampling": {"at_end": True, "prompts": [{**prompt, "sampler": s} for s in samplers_for(["flow"])]},
        },
    )
    assert not check(config).errors
    shift = TokenShift(16, 256).factor(4 * 4)
    by_size, by_hand, plain = (
        run(laid_over(config, {"training": {"noise": noise}}))
        for noise in ({}, {"dynamic_shift": False, "shift": shift}, {"dynamic_shift": False})
    )
    losses = [[e.loss for e in ran.of(StepFinished)] for ran in (by_size, by_hand, plain)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert losses[0] != pytest.approx(losses[2], rel=1e-2)
    assert list(by_size.of(ValidationFinished)[-1].by_timestep) == ["250", "750"]
    assert len(by_size.of(SampleReady)) == len(samplers_for(["flow"]))
    steps = scheduler_for(load_tiny(sized_model, Z_IMAGE.name), "euler", Size(64, 64))
    assert steps.scheduler.config["shift"] == pytest.approx(shift)


def test_samplers_of_flow_models_are_offered_while_there_is_a_family() -> None:
    assert "heun" in sampler_labels()


# -- guidance


@pytest.mark.parametrize(
    ("kind", "guidance", "batch", "scale"),
    [
        ("classifier_free", 4.0, 4, None),
        ("classifier_free", 1.0, 2, None),
        ("embedded", 4.0, 2, 4.0),
        ("none", 4.0, 2, None),
    ],
)
def test_guidance_is_that_of_the_family(kind: Any, guidance: float, batch: int, scale: float | None) -> None:
    """By a doubled batch, by an input of the model, or not at all; the second never needs the empty prompt."""
    seen: list[tuple[int, float | None]] = []

    @dataclass
    class Text:
        prompts: list[str]
        guidance: float | None = None

        def __len__(self) -> int:
            return len(self.prompts)

        def select(self, rows: list[int]) -> Text:
            return Text([self.prompts[i] for i in rows])

    def predict(noisy_BCHW: torch.Tensor, timesteps_B: torch.Tensor, text: Text) -> torch.Tensor:
        seen.append((len(noisy_BCHW), text.guidance))
        assert len(noisy_BCHW) == len(timesteps_B) == len(text)
        return noisy_BCHW

    family: Any = SimpleNamespace(
        spec=replace(Z_IMAGE, guidance=kind),
        with_size_conditioning=lambda text, sizes: text,
        join=lambda texts, empty: Text([t for text in texts for t in text.prompts]),
        predict=predict,
    )
    empty: Any = Text([""]) if kind == "classifier_free" else None
    texts: Any = Text(["a", "b"])
    run_step = guided_prediction(family, texts, empty, size=Size(32, 32), guidance=guidance)
    assert run_step(torch.ones(2, 3, 4, 4), torch.tensor(500.0)).shape == (2, 3, 4, 4)
    assert seen == [(batch, scale)]


class DistilledSettings(FamilySettings):
    name: Literal["distilled"] = "distilled"


def test_a_guidance_scale_without_effect_is_said(config: Config) -> None:
    guided = laid_over(config, {"sampling": {"prompts": [{"guidance": 1.0}, {"guidance": 4.0}]}})
    path = "sampling.prompts.1.guidance"
    assert path not in [p.path for p in problems_of(guided)]
    with registered(replace(Z_IMAGE, name="distilled", settings=DistilledSettings, guidance="none")):
        distilled = laid_over(guided, {"model": {"family": "distilled"}})
        assert [(p.path, p.severity) for p in problems_of(distilled) if p.path == path] == [(path, "info")]


def test_a_negative_prompt_without_effect_is_said(config: Config) -> None:
    """It acts where classifier-free guidance does: with a scale above 1, in a model that has it."""
    prompts = [{"guidance": 4.0, "negative_prompt": "red"}, {"guidance": 1.0, "negative_prompt": "red"}]
    guided, plain = (laid_over(config, {"sampling": {"prompts": p}}) for p in (prompts[:1], prompts))
    assert not [p for p in problems_of(guided) if "negative_prompt" in p.path]
    [found] = [p for p in problems_of(plain) if "negative_prompt" in p.path]
    assert (found.path, found.severity) == ("sampling.prompts.1.negative_prompt", "info")
    with registered(replace(Z_IMAGE, name="distilled", settings=DistilledSettings, guidance="embedded")):
        embedded = laid_over(guided, {"model": {"family": "distilled"}})
        [found] = [p for p in problems_of(embedded) if "negative_prompt" in p.path]
        assert found.message.endswith("Z-Image has no classifier-free guidance.")
