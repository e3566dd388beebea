"""Our embedding files in stock diffusers: `load_textual_inversion` samples the trainer's image."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from modules.config.schema import Config
from modules.config.sections.evaluation import SamplePrompt
from modules.families.embeddings import Embedding
from modules.families.kinds.identify import identify, who_loads_file
from modules.formats.embedding_file import read_embedding
from modules.system.errors import DarkroomError
from tests.builders.configs import laid_over
from tests.builders.pipelines import load_tiny, sample_in_diffusers, sample_with_ours, stock_pipeline
from trainer.export.embeddings import EmbeddingExporter
from trainer.export.exporter import SaveMoment

WORD = "<zog>"
PROMPT = SamplePrompt(
    prompt=f"a {WORD}, red", negative_prompt="blurred", width_px=64, height_px=64, seed=3, steps=4, guidance=3.0
)


@pytest.fixture(params=["tiny_sd", "tiny_sd2", "tiny_sdxl"])
def any_model(request: pytest.FixtureRequest) -> Path:
    folder: Path = request.getfixturevalue(request.param)
    return folder


def exported(folder: Path, path: Path) -> tuple[Any, Embedding]:
    """A model with an embedding of two random vectors, which is written to a path."""
    family, generator = load_tiny(folder), torch.Generator().manual_seed(1)
    widths = widths_of(family)
    rows = {n: nn.Parameter(torch.randn(2, width, generator=generator)) for n, width in widths.items()}
    family.add_embeddings({WORD: rows})
    embedding = Embedding(WORD, WORD, rows, {}, frozenset(), {})
    config = laid_over(Config(), {"output": {"dtype": "float32"}})
    now = datetime(2026, 1, 2, 3, 4, 5)
    EmbeddingExporter(embedding, family, config).save(
        path, dict(embedding.parameters), SaveMoment(now, step=3, epoch=1)
    )
    return family, embedding


def widths_of(family: Any) -> dict[str, int]:
    return {n: family.towers[n].encoder.config.hidden_size for n in family.spec.text.embedding_tensors}


def test_stock_diffusers_samples_the_trainers_image(any_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "zog.safetensors"
    family, _ = exported(any_model, path)
    pipe = stock_pipeline(any_model)
    if len(family.spec.text.embedding_tensors) == 1:
        pipe.load_textual_inversion(str(path), token=WORD)
    else:
        state = load_file(path)
        for part, name in family.spec.text.embedding_tensors.items():
            tokenizer = getattr(pipe, part.replace("text_encoder", "tokenizer"))
            encoder = getattr(pipe, part)
            pipe.load_textual_inversion(state[name], token=WORD, text_encoder=encoder, tokenizer=tokenizer)
    ours = sample_with_ours(family, PROMPT)
    assert np.abs(ours - sample_in_diffusers(pipe, PROMPT)).max() <= 1
    plain = sample_with_ours(load_tiny(any_model), PROMPT)
    assert np.abs(ours - plain).max() > 1


def test_inspect_names_the_embedding(any_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "zog.safetensors"
    family, _ = exported(any_model, path)
    found, loads = who_loads_file(path)
    assert found.kind == identify(path).kind == "embedding"
    assert found.facts["tokens"] == "2"
    if len(family.spec.text.embedding_tensors) == 2:
        assert {x.program for x in loads if x.answer == "yes"} >= {"A1111", "ComfyUI", "Forge"}


@pytest.mark.parametrize("form", ["ours", "a1111", "diffusers", "comfyui", "onetrainer", "one vector"])
def test_every_form_of_one_encoder_is_read(tiny_sd: Path, tmp_path: Path, form: str) -> None:
    path = tmp_path / ("zog.safetensors" if form in ("ours", "comfyui", "onetrainer") else "zog.pt")
    family, embedding = exported(tiny_sd, tmp_path / "ours.safetensors")
    rows = embedding.rows["text_encoder"].detach().clone()
    match form:
        case "ours":
            (tmp_path / "ours.safetensors").rename(path)
        case "a1111":
            data = {"string_to_token": {"*": 265}, "string_to_param": {"*": nn.Parameter(rows)}, "name": "zog"}
            torch.save({**data, "step": 10, "sd_checkpoint": None, "sd_checkpoint_name": None}, path)
        case "diffusers":
            torch.save({WORD: rows}, path)
        case "one vector":
            rows = rows[:1]
            torch.save({WORD: rows[0]}, path)
        case "comfyui":
            save_file({"anything": rows}, path)
        case _:
            save_file({"emp_params": rows, "emp_params_out": rows + 1}, path)
    found = read_embedding(path, family.spec.text.embedding_tensors, widths_of(family))
    assert torch.equal(found["text_encoder"], rows)


def test_files_of_two_encoders_and_of_another_model(tiny_sdxl: Path, tiny_sd2: Path, tmp_path: Path) -> None:
    path = tmp_path / "zog.safetensors"
    family, embedding = exported(tiny_sdxl, path)
    names, widths = family.spec.text.embedding_tensors, widths_of(family)
    found = read_embedding(path, names, widths)
    assert all(torch.equal(found[n], rows) for n, rows in embedding.rows.items())
    save_file({"emb_params": torch.ones(1, widths["text_encoder"])}, path)  # of SD 1.x: that of CLIP-L alone
    assert read_embedding(path, names, widths).keys() == {"text_encoder"}
    save_file({"emb_params": torch.ones(1, 7)}, path)
    with pytest.raises(DarkroomError, match="no vectors for this model: it contains emb_params"):
        read_embedding(path, names, widths)
    other = load_tiny(tiny_sd2)
    with pytest.raises(DarkroomError, match=r"shape \(1, 7\); the text encoder needs a width of"):
        read_embedding(path, other.spec.text.embedding_tensors, widths_of(other))
    save_file({"emb_params": torch.full((1, widths_of(other)["text_encoder"]), float("nan"))}, path)
    with pytest.raises(DarkroomError, match="NaN or infinite"):
        read_embedding(path, other.spec.text.embedding_tensors, widths_of(other))
