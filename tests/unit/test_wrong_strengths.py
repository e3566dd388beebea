"""Where a program loads layers at a wrong strength, or where it is not known: what inspect must not call complete."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from modules.families.kinds.file_kind import FileKind
from modules.families.kinds.identify import who_loads_file
from modules.families.kinds.lora import adapter_loads
from modules.families.kinds.record import Loads
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
    return {x.program: x for x in adapter_loads(header, FileKind("lora", "", model="sd1"))}


def test_programs_that_ignore_the_alpha_in_the_metadata_use_a_wrong_strength() -> None:
    found = loads_with(by.peft("sd1", text), {"text_encoder.lora_alpha": by.RANK / 2})
    for program in ("ComfyUI", "Forge"):
        assert (found[program].answer, found[program].note) == ("no", f"{IGNORES}; {ADVICE}")
    assert found["diffusers"].complete
    assert found["diffusers 0.31"].loads == "none"


def test_layers_whose_alpha_is_the_rank_are_loaded() -> None:
    assert all(loads_with(by.peft("sd1", text), {"lora_alpha": by.RANK})[p].complete for p in ("ComfyUI", "Forge"))
    pattern = {"text_encoder.lora_alpha": by.RANK, "text_encoder.alpha_pattern": {"encoder.layers.0.mlp.fc1": 1}}
    comfy = loads_with(by.peft("sd1", text), pattern)["ComfyUI"]
    assert (comfy.loads, comfy.note) == ("part", f"{IGNORES}; {ADVICE}")


@pytest.mark.parametrize(
    "alpha", ["1" + "0" * 400, "9" * 5000, "NaN", "Infinity", "true", "null", "[1]", '"1"', "[" * 90_000]
)
def test_strange_settings_count_as_none(alpha: str) -> None:
    settings = f'{{"text_encoder.lora_alpha": {alpha}, "text_encoder.alpha_pattern": [1]}}'
    assert loads_with(by.peft("sd1", text), settings, is_json=True)["ComfyUI"].complete


@pytest.mark.parametrize(("strange", "answer"), [(0, "?"), (1, "partly")])
def test_another_size_is_doubted_with_bundled_embeddings_and_lost_layers(strange: int, answer: str) -> None:
    keys = by.kohya("sd1", by.transformers) | {"bundle_emb.cat.string_to_param.*": (4, 768)}
    keys |= {f"lora_unet_strange_{n}.lora_down.weight": (4, 4) for n in range(strange)}
    header = CheckpointHeader(Path("lora.safetensors"), "safetensors", keys, {}, {CONFIGS_KEY: "{}"})
    found = {x.program: x for x in adapter_loads(header, FileKind("lora", "", model="sd1"))}
    assert found["A1111"].answer == answer
    assert found["Forge"].answer == "partly"
    assert all("a different size" in found[p].note for p in ("ComfyUI", "A1111", "Forge"))


def test_tensors_that_are_no_factors_count_as_layers(tmp_path: Path) -> None:
    keys = by.kohya("sd1", by.transformers) | {"strange.weight": (4, 4), "strange.bias": (4,), "stray": (2,)}
    kind, _ = who_loads_file(write_header(tmp_path / "lora.safetensors", keys))
    assert kind.facts["layers"] == "266"


def test_one_tensor_is_not_called_tensors(tmp_path: Path) -> None:
    kind, _ = who_loads_file(write_header(tmp_path / "one.safetensors", {"weight": (4, 4)}))
    assert "contains 1 tensor of an unknown model" in kind.sentence
