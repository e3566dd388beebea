"""How many layers of each kind of adapter file each program loads: every row that was measured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from modules.families.kinds.file_kind import FileKind
from modules.families.kinds.lora_programs import lora_loads
from modules.families.kinds.record import Loads
from modules.formats.checkpoint_header import CheckpointHeader
from tests.builders import lora_keys as by
from tests.builders.lora_keys import Keys

BUNDLED: Keys = {"bundle_emb.cat.string_to_param.*": (4, 768)}
LOHA: Keys = {f"lora_unet_conv_in.hada_{n}": (4, 4) for n in ("w1_a", "w1_b", "w2_a", "w2_b")}

# Each row: the model, its tensors, their layers, and how many of them ComfyUI, Forge, A1111, sd-scripts and diffusers
# 0.42.1 and 0.31 load, measured with the programs' own code. None: at least a part of it was not measured.
Row = tuple[str, Callable[[], Keys], int, tuple[int | None, ...]]
ROWS: dict[str, Row] = {
    "kohya, SD 1.5": ("sd1", lambda: by.kohya("sd1"), 354, (354, 354, 354, 350, 354, 350)),
    "kohya, SD 2 v": ("sd2_v", lambda: by.kohya("sd2_v"), 420, (420, 420, 420, 416, 420, 416)),
    "kohya, SDXL": ("sdxl", lambda: by.kohya("sdxl"), 1058, (1058, 1058, 1058, 1052, 1058, 0)),
    "kohya, SDXL, transformers": (
        "sdxl",
        lambda: by.kohya("sdxl", by.transformers),
        986,
        (986, 986, 986, 986, 986, 986),
    ),
    "PEFT, SD 1.5": ("sd1", lambda: by.peft("sd1"), 354, (226, 0, 0, 0, 354, 354)),
    "PEFT, SDXL": ("sdxl", lambda: by.peft("sdxl"), 1058, (498, 0, 0, 0, 1058, 1058)),
    "diffusers, SD 1.5": ("sd1", lambda: by.peft("sd1", by.attention), 176, (48, 0, 0, 0, 176, 176)),
    "diffusers, SD 1.5, new": ("sd1", lambda: by.peft("sd1", by.attention, bare=True), 176, (0, 0, 0, 0, 176, None)),
    "diffusers, SDXL": ("sdxl", lambda: by.peft("sdxl", by.attention), 736, (176, 0, 0, 0, 736, 736)),
    "diffusers, SDXL, new": ("sdxl", lambda: by.peft("sdxl", by.attention, bare=True), 736, (128, 0, 0, 0, 736, None)),
    "raw PEFT": ("sd1", lambda: by.peft("sd1", by.unet, start="base_model.model."), 282, (0, 0, 0, 0, 0, 0)),
    "Tucker": (
        "sd1",
        lambda: by.with_each(by.kohya("sd1"), "lora_mid.weight", (4, 4, 3, 3)),
        354,
        (354, 354, 354, None, 0, 0),
    ),
    "SDXL, diffusers names": (
        "sdxl",
        lambda: by.kohya("sdxl", is_sgm=False),
        1058,
        (1058, 1058, 1056, None, 1056, 1052),
    ),
    "OneTrainer, SDXL": (
        "sdxl",
        lambda: by.kohya("sdxl", by.everything),
        1059,
        (1059, 1059, None, None, 1059, 0),
    ),
    "SD 1.5, lora_te1_": (
        "sd1",
        lambda: by.kohya("sd1", by.transformers, text="lora_te1"),
        264,
        (264, 264, 264, None, 264, None),
    ),
    "w_norm, SD 1.5": ("sd1", lambda: by.kohya("sd1", norms=True), 463, (463, 463, 463, None, 0, 0)),
    "ComfyUI, SDXL": ("sdxl", lambda: by.comfy("sdxl"), 1058, (1058, 0, 0, 0, 0, 0)),
    "bundled embedding": ("sd1", lambda: by.kohya("sd1") | BUNDLED, 354, (354, 354, 354, 350, 0, 0)),
    "PEFT with alpha": ("sd1", lambda: by.peft("sd1") | {"unet.conv_in.alpha": ()}, 354, (226, 0, 0, 0, 0, 0)),
    "DoRA": ("sd1", lambda: by.with_each(by.kohya("sd1"), "dora_scale", (4, 1)), 354, (354, 354, 354, None, 0, 0)),
    "LoHa": ("sd1", lambda: LOHA, 1, (1, 1, 1, 0, 0, 0)),
    "before PEFT": ("sd1", lambda: by.processors("sd1"), 176, (None, None, 0, 0, 176, None)),
    "SimpleTuner": (
        "sd1",
        lambda: by.renamed(by.kohya("sd1", by.unet), "^lora_unet_", "lycoris_"),
        282,
        (282, 282, 0, 0, 0, 0),
    ),
}
PROGRAMS = ("ComfyUI", "Forge", "A1111", "sd-scripts", "diffusers", "diffusers 0.31")


def loads(model: str, keys: Keys, *, programs: tuple[str, ...] = PROGRAMS) -> dict[str, Loads]:
    header = CheckpointHeader(Path("lora.safetensors"), "safetensors", keys, {}, {})
    found = {x.program: x for x in lora_loads(header, FileKind("lora", "", model=model))}
    return {program: found[program] for program in programs}


@pytest.mark.parametrize("row", ROWS)
def test_layers_are_counted_as_the_programs_count_them(row: str) -> None:
    model, keys, total, expected = ROWS[row]
    found = loads(model, keys())
    assert {x.total for x in found.values()} == {total}
    counts = {p: None if x.unknown else x.loaded for p, x in found.items()}
    assert counts == dict(zip(PROGRAMS, expected, strict=True))
