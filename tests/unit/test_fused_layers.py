"""The changes of matrices that hold several layers: which can be divided and joined, and which are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from modules.adapters.changes import weight_change
from modules.adapters.stored_header import match_header
from modules.families.kinds.identify import who_loads_file
from modules.families.parts.single_file.models import CONFIGS_KEY, shipped_configs
from modules.formats.adapter_file import read_adapter_file
from modules.formats.adapter_layers import AdapterLayer, lora_layer
from modules.formats.adapter_names import DOWN, UP
from modules.formats.adapter_targets import AdapterTarget, AdapterTargets
from modules.formats.checkpoint_header import read_checkpoint_header
from modules.formats.fused_changes import divide, join
from modules.formats.fused_layers import RANKS_KEY, ranks_in
from modules.system.errors import DarkroomError

WIDTH = 6
PIECES = tuple(
    AdapterTarget(
        "transformer", f"block.{n}", (WIDTH * share, WIDTH), {"diffusers": f"block.{n}"}, "lycoris_", "diffusers"
    )
    for n, share in (("q", 1), ("k", 1), ("mlp", 4))
)
MATRIX = AdapterTarget(
    "transformer", "fused", (6 * WIDTH, WIDTH), {"original": "fused"}, "lora_unet_", "original", PIECES
)
NORM = AdapterTarget("transformer", "norm_out", (2 * WIDTH, WIDTH), {"diffusers": "norm_out"}, "lycoris_", "diffusers")
SWAPPED = AdapterTarget(
    "transformer", "final", (2 * WIDTH, WIDTH), {"original": "final"}, "lora_unet_", "original", (NORM,), swapped=True
)
TARGETS = AdapterTargets.of((*PIECES, NORM), (MATRIX, SWAPPED))
ROWS = {"q": slice(0, 6), "k": slice(6, 12), "mlp": slice(12, 36)}


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def change_of(layer: AdapterLayer, rows: int) -> torch.Tensor:
    change = weight_change(layer.factors, layer.alpha, torch.zeros(rows, WIDTH))
    assert change is not None
    return change


LORA = {DOWN: random(2, WIDTH), UP: random(6 * WIDTH, 2)}
LOHA = {
    "hada_w1_a": random(6 * WIDTH, 2), "hada_w1_b": random(2, WIDTH),
    "hada_w2_a": random(6 * WIDTH, 3)[:, :2].contiguous(), "hada_w2_b": random(2, WIDTH) + 1,
}  # fmt: skip


@pytest.mark.parametrize(
    "factors", [LORA, LOHA, {"diff": random(6 * WIDTH, WIDTH)}], ids=["lora", "loha", "difference"]
)
def test_the_pieces_have_the_rows_of_the_whole_change(factors: dict[str, torch.Tensor], tmp_path: Path) -> None:
    file = tmp_path / "fused.safetensors"
    alpha = {} if "diff" in factors else {"lora_unet_fused.alpha": torch.tensor(3.0)}
    save_file({f"lora_unet_fused.{n}": t for n, t in factors.items()} | alpha, file)
    content = read_adapter_file(file, TARGETS)
    whole = change_of(AdapterLayer("transformer", "fused", factors, 3.0 if alpha else None), 6 * WIDTH)
    assert [layer.path for layer in content.layers] == ["block.q", "block.k", "block.mlp"]
    for layer, (name, rows) in zip(content.layers, ROWS.items(), strict=True):
        assert torch.equal(change_of(layer, rows.stop - rows.start), whole[rows]), name
    shapes = match_header(read_checkpoint_header(file), TARGETS).layers
    assert shapes == {(layer.part, layer.path): layer.shapes for layer in content.layers}


def test_layers_of_another_size_are_not_joined() -> None:
    """It was a traceback of torch."""
    with pytest.raises(
        DarkroomError, match=r"for a model of another size: its layer block\.q has 4 outputs instead of 6"
    ):
        join([lora_layer("transformer", "block.q", random(2, 4), random(4, 2), 2.0)], TARGETS.matrices)


def test_diffusers_is_not_promised_for_matrices_of_another_width(tmp_path: Path) -> None:
    """Its converter of kohya's files has the widths of FLUX.1 as constants, and raises an AssertionError for others."""
    width = {"num_layers": 1, "num_single_layers": 1, "num_attention_heads": 2, "attention_head_dim": 16}
    configs = {"transformer": {**shipped_configs("flux_dev")["transformer"], **width}}
    size = {CONFIGS_KEY: json.dumps(configs), "modelspec.architecture": "flux-1-dev/lora"}
    layer = "lora_unet_double_blocks_0_img_attn_qkv"
    tensors = {f"{layer}.lora_down.weight": random(2, 32), f"{layer}.lora_up.weight": random(96, 2)}
    save_file(tensors, tmp_path / "l.safetensors", size)
    [diffusers] = [x for x in who_loads_file(tmp_path / "l.safetensors")[1] if x.program == "diffusers"]
    assert (diffusers.loads, diffusers.note) == ("unknown", "divides joined layers at the published width alone")


def test_dora_of_outputs_is_divided_with_its_rows() -> None:
    scale = random(6 * WIDTH, 1).abs()
    pieces = divide(AdapterLayer("transformer", "fused", {**LORA, "dora_scale": scale}, 2.0), MATRIX)
    assert torch.equal(pieces[1].factors["dora_scale"], scale[ROWS["k"]])


@pytest.mark.parametrize(
    ("factors", "why"),
    [
        ({"lokr_w1": random(2, 2), "lokr_w2": random(18, 3)}, "by LoKr"),
        ({"oft_blocks": random(6, 6, 6)}, "by OFT"),
        ({**LORA, "dora_scale": random(1, WIDTH).abs()}, "by DoRA on the input axis"),
    ],
    ids=["lokr", "oft", "dora"],
)
def test_what_cannot_be_divided_is_refused(factors: dict[str, torch.Tensor], why: str, tmp_path: Path) -> None:
    file = tmp_path / "fused.safetensors"
    save_file({f"lora_unet_fused.{n}": t for n, t in factors.items()}, file)
    with pytest.raises(DarkroomError, match=why):
        read_adapter_file(file, TARGETS)
    assert match_header(read_checkpoint_header(file), TARGETS).undivided == {"fused": why}


def test_the_halves_are_swapped_both_ways() -> None:
    layer = lora_layer("transformer", "norm_out", random(2, WIDTH), random(2 * WIDTH, 2), 1.0)
    [joined], _ = join([layer], TARGETS.matrices)
    assert joined.path == "final"
    assert torch.equal(joined.factors[UP], layer.factors[UP].roll(WIDTH, 0))
    [back] = divide(joined, SWAPPED)
    assert torch.equal(back.factors[UP], layer.factors[UP])
    assert back.alpha == layer.alpha


def test_only_loras_are_joined_and_a_missing_piece_is_left_out() -> None:
    loras = [
        lora_layer("transformer", f"block.{n}", random(2, WIDTH), random(6 * s, 2), 4.0)
        for n, s in (("q", 1), ("mlp", 4))
    ]
    [joined], metadata = join(loras, TARGETS.matrices)
    assert (joined.rank, joined.alpha) == (4, 8.0)
    assert ranks_in(metadata) == {"fused": (2, 0, 2)}
    back = divide(joined, MATRIX, (2, 0, 2))
    assert [(x.path, x.rank, x.alpha) for x in back] == [("block.q", 2, 4.0), ("block.mlp", 2, 4.0)]
    lokr = [AdapterLayer("transformer", "block.q", {"lokr_w1": random(2, 2), "lokr_w2": random(3, 3)})]
    assert join(lokr, TARGETS.matrices) == (lokr, {})


def test_ranks_that_the_tensors_contradict_are_not_used() -> None:
    """A file that another program changed may have kept the metadata."""
    layer = lora_layer("transformer", "fused", random(6, WIDTH), random(6 * WIDTH, 6), 6.0)
    pieces = divide(layer, MATRIX, (2, 2, 2))
    assert [piece.rank for piece in pieces] == [6, 6, 6]
    for text in ("[", "[1]", json.dumps({"fused": ["2"]}), json.dumps({"fused": [-1, 4, 3]})):
        assert ranks_in({RANKS_KEY: text}) == {}
