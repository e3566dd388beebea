"""What a tool cannot keep is reported before it writes: a user can still stop it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from modules.families.kinds.identify import identify
from modules.families.parts.single_file.models import CONFIGS_KEY
from modules.families.registry import published_model
from tests.builders.adapter_forms import FORMS, lora_layers, norm_layers, tensors_in
from tests.builders.single_files import tiny_configs, write_tiny
from trainer.job import Job
from trainer.job_events import JobEvent, JobFinished, JobNotes, JobProgress
from trainer.jobs.file_work import combine_loras, convert_file, merge_loras
from trainer.jobs.files import CombineSettings, ConvertSettings, MergeSettings
from trainer.jobs.spec import AdapterChoice

pytestmark = pytest.mark.usefixtures("one_thread")
UNET = "model.diffusion_model."


def notes_before(out: Path, work: Callable[[Job], JobFinished]) -> str:
    """The notes that a job reported while its output did not exist; it reports none of them again."""
    found: list[str] = []

    def emit(event: JobEvent) -> None:
        if isinstance(event, JobNotes):
            assert not out.exists()
            found.extend(event.notes)
        assert found or not isinstance(event, JobProgress) or not event.what.startswith("writing")

    finished = work(Job(emit))
    assert not any("kohya form" in note for note in finished.notes), "the input's"
    assert out.exists()
    assert not set(finished.notes) & set(found)
    return "\n".join(found)


@pytest.fixture
def lora(tmp_path: Path) -> Path:
    """A kohya file with a bundled embedding and LyCORIS' norms, for a tiny model."""
    configs = tiny_configs("sd1")
    layers = [*lora_layers("sd1", configs), *norm_layers("sd1", configs)]
    tensors = tensors_in(FORMS["kohya, lora_te"], layers, configs)
    tensors["bundle_emb.cat.string_to_param.*"] = torch.ones(2, 8)
    metadata = {
        CONFIGS_KEY: json.dumps(configs),
        "modelspec.architecture": f"{published_model('sd1').architecture}/lora",
    }
    save_file(tensors, tmp_path / "lora.safetensors", metadata)
    return tmp_path / "lora.safetensors"


def test_a_conversion_reports_first_what_its_form_cannot_hold(lora: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    said = notes_before(out, lambda job: convert_file(ConvertSettings(source=str(lora), out=str(out), to="peft"), job))
    assert "The bundled embeddings are left out" in said
    assert said.startswith("Input: A LoRA")
    assert "layers are left out: the PEFT form holds LoRA and DoRA per output only" in said


def test_a_merge_and_a_sum_report_first_what_they_leave_out(lora: Path, tmp_path: Path) -> None:
    write_tiny(tmp_path / "model.safetensors", "sd1")
    merged, summed = tmp_path / "merged.safetensors", tmp_path / "sum.safetensors"
    model, files = str(tmp_path / "model.safetensors"), (AdapterChoice(str(lora)),)
    said = notes_before(merged, lambda job: merge_loras(MergeSettings(model=model, out=str(merged), files=files), job))
    assert "The embeddings in lora.safetensors are left out" in said
    said = notes_before(summed, lambda job: combine_loras(CombineSettings(out=str(summed), files=files, rank=2), job))
    assert "The embeddings in lora.safetensors are left out" in said


def with_averages(path: Path, *, keeps: bool) -> Path:
    """A tiny model with EMA weights that are twice the others, beside these or alone."""
    write_tiny(path, "sd1")
    tensors = load_file(path)
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    unet = {n: t for n, t in tensors.items() if n.startswith(UNET)}
    averages = {f"model_ema.{n.removeprefix('model.').replace('.', '')}": t * 2 for n, t in unet.items()}
    kept = tensors if keeps else {n: t for n, t in tensors.items() if n not in unet}
    save_file(kept | averages, path, metadata)
    return path


def _settings(source: Path, out: Path, *, use_ema: bool) -> ConvertSettings:
    return ConvertSettings(source=str(source), out=str(out), use_ema=use_ema)


@pytest.mark.parametrize("form", ["single", "folder"])
@pytest.mark.parametrize("use_ema", [False, True])
def test_a_conversion_reports_first_which_weights_it_leaves_out(form: str, use_ema: bool, tmp_path: Path) -> None:
    source = with_averages(tmp_path / "m.safetensors", keeps=True)
    out = tmp_path / ("out.safetensors" if form == "single" else "out")
    said = notes_before(out, lambda job: convert_file(_settings(source, out, use_ema=use_ema), job))
    assert ("The EMA weights of m.safetensors are left out" in said) != use_ema
    assert ("The weights of m.safetensors that are not EMA weights are left out" in said) == use_ema


@pytest.mark.parametrize("use_ema", [False, True])
def test_ema_weights_that_are_alone_become_the_weights(use_ema: bool, tmp_path: Path) -> None:
    source, out = with_averages(tmp_path / "m.safetensors", keeps=False), tmp_path / "out.safetensors"
    assert "with EMA weights alone, which are used" in identify(source).sentence
    said = notes_before(out, lambda job: convert_file(_settings(source, out, use_ema=use_ema), job))
    assert "left out" not in said
    write_tiny(tmp_path / "plain.safetensors", "sd1")
    plain, found = load_file(tmp_path / "plain.safetensors"), load_file(out)
    unet = [name for name in plain if name.startswith(UNET)]
    assert unet
    assert all(torch.equal(found[name], plain[name] * 2) for name in unet)
