"""Where a program loads layers at a wrong strength, or where it is not known: what inspect must not call complete."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from modules.families.kinds.file_kind import FileKind
from modules.families.kinds.lora_programs import lora_loads
from modules.families.kinds.programs import who_loads_file
from modules.families.kinds.record import Loads, loads_layers
from modules.families.parts.single_file.models import CONFIGS_KEY
from modules.formats.checkpoint_header import CheckpointHeader
from tests.builders import lora_keys as by
from tests.builders.lora_keys import Keys
from tests.unit.test_kinds import write_header

IGNORES = "ignores the alpha in the metadata, a wrong strength"
ADVICE = "convert it to the kohya form"


def text(part: str, path: str) -> bool:
    """The layers of the text encoder, which ComfyUI and Forge load in the PEFT form."""
    return part == "text_encoder"


def loads_with(keys: Keys, settings: Any, *, is_json: bool = False) -> dict[str, Loads]:
    """What the programs make of a file with these PEFT settings."""
    metadata = {"lora_adapter_metadata": settings if is_json else json.dumps(settings)}
    header = CheckpointHeader(Path("lora.safetensors"), "safetensors", keys, {}, metadata)
    return {x.program: x for x in lora_loads(header, FileKind("lora", "", model="sd1"))}


def test_programs_that_ignore_the_alpha_in_the_metadata_use_a_wrong_strength() -> None:
    found = loads_with(by.peft("sd1", text), {"text_encoder.lora_alpha": by.RANK / 2})
    for program in ("ComfyUI", "Forge"):
        assert (found[program].answer, found[program].note) == ("no", f"{IGNORES}; {ADVICE}")
    assert found["diffusers"].complete
    assert (found["diffusers 0.31"].loaded, found["diffusers 0.31"].complete) == (0, False)


def test_layers_whose_alpha_is_the_rank_are_loaded() -> None:
    assert all(loads_with(by.peft("sd1", text), {"lora_alpha": by.RANK})[p].complete for p in ("ComfyUI", "Forge"))
    pattern = {"text_encoder.lora_alpha": by.RANK, "text_encoder.alpha_pattern": {"encoder.layers.0.mlp.fc1": 1}}
    comfy = loads_with(by.peft("sd1", text), pattern)["ComfyUI"]
    assert (comfy.loaded, comfy.note) == (comfy.total - 1, f"{IGNORES} (1 layer); {ADVICE}")


@pytest.mark.parametrize(
    "alpha", ["1" + "0" * 400, "9" * 5000, "NaN", "Infinity", "true", "null", "[1]", '"1"', "[" * 90_000]
)
def test_strange_settings_count_as_none(alpha: str) -> None:
    settings = f'{{"text_encoder.lora_alpha": {alpha}, "text_encoder.alpha_pattern": [1]}}'
    assert loads_with(by.peft("sd1", text), settings, is_json=True)["ComfyUI"].complete


@pytest.mark.parametrize(
    ("loaded", "unknown", "answer"),
    [(0, 41, "0 to 41 of 42 layers"), (0, 42, "?"), (0, 0, "no"), (40, 1, "40 to 41 of 42 layers"), (42, 0, "yes")],
)
def test_the_answer_keeps_what_is_not_known(loaded: int, unknown: int, answer: str) -> None:
    assert loads_layers("ComfyUI", loaded, 42, unknown=unknown).answer == answer


@pytest.mark.parametrize(("strange", "answer"), [(0, "0 to 264 of 264 layers"), (1, "0 to 264 of 265 layers")])
def test_another_size_is_doubted_with_bundled_embeddings_and_lost_layers(strange: int, answer: str) -> None:
    keys = by.kohya("sd1", by.transformers) | {"bundle_emb.cat.string_to_param.*": (4, 768)}
    keys |= {f"lora_unet_strange_{n}.lora_down.weight": (4, 4) for n in range(strange)}
    header = CheckpointHeader(Path("lora.safetensors"), "safetensors", keys, {}, {CONFIGS_KEY: "{}"})
    found = {x.program: x for x in lora_loads(header, FileKind("lora", "", model="sd1"))}
    assert found["Forge"].answer == answer
    assert found["A1111"].answer == ("?" if not strange else answer)
    assert all("a different size" in found[p].note for p in ("ComfyUI", "A1111", "Forge"))


def test_the_facts_and_the_programs_count_the_same_layers(tmp_path: Path) -> None:
    keys = by.kohya("sd1", by.transformers) | {"strange.weight": (4, 4), "strange.bias": (4,), "stray": (2,)}
    kind, loads = who_loads_file(write_header(tmp_path / "lora.safetensors", keys))
    assert kind.facts["layers"] == "266"
    assert {x.total for x in loads} == {266}


def test_one_tensor_is_not_called_tensors(tmp_path: Path) -> None:
    kind, _ = who_loads_file(write_header(tmp_path / "one.safetensors", {"weight": (4, 4)}))
    assert "contains 1 tensor of an unknown model" in kind.sentence
