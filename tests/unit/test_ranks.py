"""The rank and the alpha of each layer: by name, of convolutions, and rank-stabilized."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from modules.adapters.lora import Lora
from modules.adapters.ranks import at_layer, layers_with_rank, parse_ranks, ranks_of, settings_by_layer, unused_ranks
from modules.config.imports.kohya_settings import tree_of_kohya
from modules.config.rules import problems_of
from modules.config.schema import Config
from modules.optim.registry import OPTIMIZERS
from modules.settings.edit import set_path
from modules.system.errors import DarkroomError

LINEAR, KERNEL, POINT = (32, 16), (32, 16, 3, 3), (32, 16, 1, 1)
ATTN2, RESNET = "down_blocks.0.attentions.0.attn2.to_q", "mid_block.resnets.0.conv1"


@pytest.mark.parametrize(
    ("settings", "path", "weight", "expected"),
    [
        ({}, ATTN2, LINEAR, (8, 4.0)),
        ({"conv_rank": 2}, RESNET, KERNEL, (2, 1.0)),  # the strength stays
        ({"conv_rank": 2, "conv_alpha": 3.0}, RESNET, KERNEL, (2, 3.0)),
        ({"conv_alpha": 3.0}, RESNET, KERNEL, (8, 3.0)),
        ({"conv_rank": 2}, RESNET, POINT, (8, 4.0)),  # as kohya counts them
        ({"layer_ranks": "attn2 = 32:16"}, ATTN2, LINEAR, (32, 16.0)),
        ({"layer_ranks": "attn2=32"}, ATTN2, LINEAR, (32, 16.0)),
        ({"layer_ranks": "down_blocks = 2:1, attn2 = 32"}, ATTN2, LINEAR, (2, 1.0)),  # the first counts
        ({"layer_ranks": "re:^mid_block\\..*conv[12]$ = 64", "conv_rank": 2}, RESNET, KERNEL, (64, 32.0)),
        ({"layer_ranks": "re:^unet\\.mid = 5:5"}, RESNET, KERNEL, (5, 5.0)),
        ({"layer_ranks": "text_encoder = 5"}, RESNET, KERNEL, (8, 4.0)),
        ({"rank_stabilized": True}, ATTN2, LINEAR, (8, 4 * math.sqrt(8))),
        ({"rank_stabilized": True, "conv_rank": 2}, RESNET, KERNEL, (2, 4 * math.sqrt(2))),
        ({"rank_stabilized": True, "layer_ranks": "attn2=16:2"}, ATTN2, LINEAR, (16, 2 * math.sqrt(16))),
    ],
)  # fmt: skip
def test_a_layer_has_the_rank_and_the_strength_that_are_set(
    settings: dict[str, Any], path: str, weight: tuple[int, ...], expected: tuple[int, float]
) -> None:
    own = at_layer(Lora(rank=8, alpha=4.0, **settings), "unet", path, weight)
    assert (own.rank, own.alpha) == (expected[0], pytest.approx(expected[1]))
    by_layer = settings_by_layer(Lora(rank=8, alpha=4.0, **settings), "unet")
    assert by_layer is None or by_layer(path, weight) == own
    assert (by_layer is None) is not bool(settings)


def test_the_strength_at_the_rank_of_a_file() -> None:
    plain, stabilized = (ranks_of(Lora(rank=8, alpha=4.0, rank_stabilized=is_on)) for is_on in (False, True))
    assert plain.alpha_at("unet", ATTN2, 2, is_convolution=False) == 1.0
    assert stabilized.alpha_at("unet", ATTN2, 2, is_convolution=False) / 2 == pytest.approx(4 / math.sqrt(2))


def test_text_encoders_are_named_as_in_the_estimate() -> None:
    ranks = ranks_of(Lora(rank=8, layer_ranks="re:^encoder.layers.1 = 3"))
    for path in ("text_model.encoder.layers.1.mlp.fc1", "encoder.layers.1.mlp.fc1"):
        assert ranks.of("text_encoder", path, is_convolution=False)[0] == 3


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("attn2", "'attn2'"),
        ("attn2 = x", "'attn2 = x'"),
        ("attn2 = -1", "'attn2 = -1'"),
        ("attn2 = 5000", "a rank is 0 to 1024"),
        ("attn2 = 4:0", "an alpha above 0"),
        ("attn2 = 4:1e", "'1e'"),
        ("re:( = 4", "regular expression"),
        ("re:a{99999999999} = 4", "regular expression"),
        ("re:(?:a{1000}){1000} = 4", "multiply to more than"),
    ],
)
def test_a_line_that_is_none_is_an_error(text: str, named: str) -> None:
    with pytest.raises(DarkroomError, match=re.escape(named)):
        parse_ranks(text)
    config, _ = set_path(Config(), "adapter.layer_ranks", text)
    assert "adapter.layer_ranks" in [p.path for p in problems_of(config) if p.severity == "error"]


def test_a_line_without_a_layer_is_reported() -> None:
    layers = [("unet", ATTN2), ("unet", RESNET)]
    assert unused_ranks(Lora(layer_ranks="attn2 = 4\nmid_block = 8"), layers) is None
    problem = unused_ranks(Lora(layer_ranks="attn2 = 4\nattn3 = 8:2"), layers)
    assert problem is not None
    assert "'attn3=8:2'" in problem.message


def kohya(**settings: Any) -> dict[str, Any]:
    notes: list[Any] = []
    tree = tree_of_kohya({"network_module": "networks.lora", "network_dim": 8, "network_alpha": 4, **settings}, notes)
    assert "unknown" not in tree
    return dict(tree["adapter"])


def test_kohyas_settings_mean_the_same_here() -> None:
    args = ["algo=locon", "conv_dim=2", "conv_alpha=1", "rank_dropout=0.1", "module_dropout=0.2", "rs_lora=True"]
    adapter = kohya(network_module="lycoris.kohya", network_args=[*args, "dora_wd=True", "loraplus_lr_ratio=4"])
    assert adapter.items() >= {
        "conv_rank": 2, "conv_alpha": 1.0, "rank_dropout": 0.1, "module_dropout": 0.2, "rank_stabilized": True,
        "decompose": True, "decompose_output_axis": True, "lora_plus_ratio": 4.0, "layers": "all",
    }.items()  # fmt: skip


def test_kohyas_ranks_by_block() -> None:
    dims = [8] * 25
    dims[4], dims[12], dims[24] = 2, 32, 16  # the second block down, the middle, the last one up
    args = [f"block_dims={','.join(map(str, dims))}", f"block_alphas={','.join(['4'] * 25)}"]
    args += ["algo=locon", "conv_dim=4"]
    text = kohya(network_module="lycoris.kohya", network_args=args)["layer_ranks"]
    ranks = ranks_of(Lora(rank=3, alpha=1.0, layer_ranks=text))
    expected = {
        "down_blocks.1.attentions.0.proj_in": 2,
        "down_blocks.1.attentions.1.proj_in": 8,
        "mid_block.attentions.0.proj_in": 32,
        "up_blocks.3.attentions.2.proj_in": 16,
        "up_blocks.3.attentions.1.proj_in": 8,
        "up_blocks.3.resnets.2.time_emb_proj": 16,
        "up_blocks.3.resnets.2.conv1": 3,
    }
    assert {path: ranks.of("unet", path, is_convolution=False)[0] for path in expected} == expected
    assert ranks.of("unet", "mid_block.attentions.0.proj_in", is_convolution=False)[1] == 4.0


def test_kohyas_blocks_of_rank_0_have_no_adapter() -> None:
    dims = [8] * 21
    dims[0:4], dims[4] = [0] * 4, 0  # the first block of diffusers has no attention
    plain = kohya(network_args=[f"block_dims={','.join(map(str, dims))}"])
    assert "down_blocks.0" not in plain["layer_ranks"], "a line of its own that takes no layer is an error"
    ranks = ranks_of(Lora(layer_ranks=plain["layer_ranks"]))
    assert ranks.leaves_out("unet", "down_blocks.1.attentions.0.proj_in")
    assert not ranks.leaves_out("unet", "down_blocks.1.attentions.1.proj_in")
    with_resnets = kohya(
        network_module="lycoris.kohya",
        network_args=["algo=locon", "conv_dim=4", f"block_dims={','.join(map(str, dims))}"],
    )
    ranks = ranks_of(Lora(layer_ranks=with_resnets["layer_ranks"]))
    assert ranks.leaves_out("unet", "down_blocks.0.resnets.1.time_emb_proj")


def test_a_layer_of_rank_0_is_left_out() -> None:
    layers = layers_with_rank(Lora(layer_ranks="attn2.to_q = 4, attn2 = 0"), "unet")
    assert layers is not None
    assert [layers(path) for path in (ATTN2, ATTN2.replace("to_q", "to_k"), RESNET)] == [True, False, True]
    assert layers_with_rank(Lora(layer_ranks="attn2 = 4"), "unet") is None
    assert layers_with_rank(Lora(layer_ranks="attn2 = x"), "unet") is None


@pytest.mark.parametrize("name", ["prodigy", "adamw"])
def test_one_learning_rate_cannot_have_a_ratio(name: str) -> None:
    config, _ = set_path(Config(), "training.optimizer", {"name": name})
    config, _ = set_path(config, "adapter.lora_plus_ratio", 16.0)
    found = [p.path for p in problems_of(config) if "LoRA+" in p.message]
    assert found == (["adapter.lora_plus_ratio"] if OPTIMIZERS[name].has_one_rate else [])
