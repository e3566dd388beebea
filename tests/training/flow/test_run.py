"""A run of every flow family with all that a run has, and its LoRA in every form.

What diffusers loads is loaded by its own loader; `test_pipelines.py` compares text and samples with its pipelines.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from modules.config.codec import decode, encode
from modules.config.rules import RULES
from modules.config.schema import Config
from modules.families.kinds.identify import identify, who_loads_file
from modules.families.kinds.lora import LORA
from modules.families.protocol import ModelFamily
from modules.formats.safetensors_io import read_safetensors
from tests.builders.configs import laid_over
from tests.builders.flow_models import FlowModel
from tests.builders.pipelines import linear_layers, load_tiny, noise_of
from tests.builders.runs import Ran, assert_equal_tensors, losses, run
from trainer.__main__ import main
from trainer.events import BackupSaved, SampleReady, ValidationFinished
from trainer.preflight import check
from ui.forms.records import groups_of


def test_it_passes_every_check(watched: Config) -> None:
    assert not check(watched).errors
    assert not [p for rule in RULES for p in rule(watched) if p.severity == "error"]


def test_it_is_shown_in_the_forms(config: Config, tiny: FlowModel) -> None:
    assert [g.title for g in groups_of(config, ("parts",))] == [part.label for part in tiny.spec.parts]


def test_it_caches_trains_validates_samples_and_saves_a_lora(
    ran: Ran, folder: Path, tiny: FlowModel, model: Path, config: Config
) -> None:
    assert len(set(losses(ran))) == len(losses(ran))
    scores = [e.loss for e in ran.of(ValidationFinished)]
    assert scores[-1] < scores[0]
    samples = ran.of(SampleReady)
    assert len(samples) == len(tiny.samplers)
    assert {Image.open(sample.path).size for sample in samples} == {(tiny.side_px, tiny.side_px)}
    lora = Path(ran.finished.model_path)
    denoiser = tiny.spec.denoiser
    trained = {name.partition(".lora_")[0] for name in read_safetensors(lora)[0]}
    family: ModelFamily = load_tiny(model, tiny.family, variant=config.model.variant)
    chosen = {f"{denoiser.name}.{n}" for n in linear_layers(family) if denoiser.model.layers["attention_mlp"].takes(n)}
    assert {name for name in trained if name.startswith(f"{denoiser.name}.")} == chosen  # the default preset
    kind = identify(lora)
    assert (kind.kind, kind.family, kind.facts["form"]) == ("lora", tiny.family, "diffusers")
    shapes = {tuple(t.shape) for f in (folder / "cache" / "latents").rglob("*.safetensors") for t in tensors_in(f)}
    assert {shape[0] for shape in shapes} == {tiny.spec.latents.channels}
    entries = [read_safetensors(file)[0] for file in (folder / "cache" / "text").rglob("*.safetensors")]
    lengths = {max(t.shape[1] for t in entry.values() if t.dim() == 3) for entry in entries}
    assert (len(lengths) == 1) is tiny.attends_to_padding  # or real ones alone


def tensors_in(file: Path) -> list[torch.Tensor]:
    return list(read_safetensors(file)[0].values())


@pytest.mark.daily(5)
def test_a_resumed_run_ends_the_same(ran: Ran, watched: Config) -> None:
    first = Path(ran.of(BackupSaved)[0].path)
    resumed = run(watched, resume_from=first)
    assert_equal_tensors(resumed.weights, ran.weights)
    assert losses(ran)[-len(losses(resumed)) :] == losses(resumed)


@pytest.mark.daily(2)
def test_cached_latents_and_text_train_as_fresh_ones(ran: Ran, watched: Config) -> None:
    fresh = run(laid_over(watched, {"data": {"latent_cache": False, "text_cache": False}}))
    assert losses(fresh) == losses(ran)


@pytest.mark.daily(1)
def test_a_config_without_any_of_its_keys_loads(watched: Config) -> None:
    """One of the seeds' failures: a config of another version without a key ended a run with a KeyError."""
    tree = encode(watched)
    for section in ("general", "model", "parts", "data", "training", "sampling", "validation", "output"):
        for key in tree[section]:
            lacking = {**tree, section: {k: v for k, v in tree[section].items() if k != key}}
            assert not [p for p in decode(lacking).problems if p.severity == "error"], (section, key)


# -- its LoRA


@pytest.mark.daily(2)
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


@pytest.mark.daily(4)
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
    text, noisy, timesteps = family.encode_prompts(["a disc"]), noise_of(family, batch=1, seed=5), torch.tensor([500.0])
    plain, tuned = (f.predict(noisy, timesteps, text) for f in (family, ours))
    assert not torch.allclose(plain, tuned, atol=1e-3)
    pipe, files = tiny.pipeline(model, family), [written, *in_every_form(written, tiny, tmp_path)]
    has_loader = hasattr(pipe, "load_lora_weights")
    for file in (f for f in files if f.stem not in tiny.unread):
        expected = "all" if has_loader else "none"
        assert {x.program: x.loads for x in who_loads_file(file)[1]}["diffusers"] == expected
        if not has_loader:
            continue
        pipe.load_lora_weights(file)
        theirs = family.predict(noisy, timesteps, text)
        torch.testing.assert_close(theirs, tuned, rtol=1e-4, atol=1e-5)
        pipe.unload_lora_weights()
