"""Files that other programs write, and parts of whole models at their real sizes: what `inspect` calls them."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from lycoris.modules.ia3 import IA3Module
from safetensors.torch import save_file
from torch import nn

from modules.families.kinds.identify import identify, who_loads_file
from modules.families.parts.single_file.checkpoint import empty_part, open_checkpoint, part_state
from modules.families.parts.single_file.models import layouts, shipped_configs
from modules.families.registry import FAMILIES, family_of
from modules.formats.embedding_file import read_embedding
from modules.formats.stored_tensors import read_stored
from modules.system.errors import DarkroomError
from modules.system.factories import load_factory
from modules.system.problem import with_article
from tests.unit.test_kinds import Shapes, kohya, write_header

MODELS = ("sd1", "sd2", "sdxl")


@pytest.mark.parametrize(
    ("thing", "said"),
    [
        *(("LoRA of rank 4", "a LoRA of rank 4"), ("OFT for SDXL", "an OFT for SDXL"), ("SDXL LoRA", "an SDXL LoRA")),
        *(("UNet alone", "a UNet alone"), ("upscaler (ESRGAN)", "an upscaler (ESRGAN)"), ("VAE", "a VAE")),
        *(("LTX video model", "an LTX video model"), ("IP-Adapter", "an IP-Adapter"), ("IA3", "an IA3")),
        *(("AVIF image", "an AVIF image"), ("AuraFlowPipeline", "an AuraFlowPipeline"), ("Embedding", "an Embedding")),
        *(
            ("DoRA (LoHa)", "a DoRA (LoHa)"),
            ("hypernetwork", "a hypernetwork"),
            ("T5 text encoder", "a T5 text encoder"),
        ),
    ],
)
def test_articles(thing: str, said: str) -> None:
    assert with_article(thing) == said
    assert with_article(thing, capital=True) == said[0].upper() + said[1:]


def test_an_oft_has_its_article(tmp_path: Path) -> None:
    found = identify(write_header(tmp_path / "l.safetensors", {"lora_unet_x.oft_blocks": (4, 4, 4)}))
    assert found.sentence.startswith("An OFT for")


# -- adapters and networks beside a model -----------------------------------------------------------------------------


def test_ia3_of_lycoris(tmp_path: Path) -> None:
    tensors = {}
    for name in ("attn2_to_k", "ff_net_2"):
        layer = f"lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_{name}"
        tensors |= {f"{layer}.{n}": t for n, t in IA3Module(layer, nn.Linear(768, 320), 1.0).state_dict().items()}
    assert any(name.endswith(".on_input") for name in tensors)
    save_file(tensors, tmp_path / "ia3.safetensors")
    found, loads = who_loads_file(tmp_path / "ia3.safetensors")
    assert (found.kind, found.facts["adapter"], found.facts["layers"]) == ("lora", "IA3", "2")
    assert found.sentence.startswith("An IA3 for")
    assert not any(x.complete for x in loads)


def test_ia3_of_peft(tmp_path: Path) -> None:
    shapes: Shapes = {"base_model.model.down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_k.ia3_l": (320, 1)}
    found = identify(write_header(tmp_path / "ia3.safetensors", shapes))
    assert (found.kind, found.facts["adapter"], found.facts["form"]) == ("lora", "IA3", "raw_peft")


# Stability AI's Control-LoRA: a tensor as the mark, and factors under the names of a ControlNet of the original layout.
CONTROL_LORA: Shapes = {
    "lora_controlnet": (0,),
    "input_blocks.1.0.in_layers.2.up": (320, 128, 1, 1),
    "input_blocks.1.0.in_layers.2.down": (128, 320, 3, 3),
    "input_blocks.0.0.weight": (320, 4, 3, 3),
    "input_hint_block.0.weight": (16, 3, 3, 3),
    "zero_convs.0.0.weight": (320, 320, 1, 1),
    "label_emb.0.0.down": (128, 2816),
}
LLLITE: Shapes = {
    "lllite_unet_input_blocks_4_1_transformer_blocks_0_attn1_to_q.conditioning1.0.weight": (16, 3, 4, 4),
    "lllite_unet_input_blocks_4_1_transformer_blocks_0_attn1_to_q.down.0.weight": (64, 640),
    "lllite_unet_input_blocks_4_1_transformer_blocks_0_attn1_to_q.mid.0.weight": (64, 96),
    "lllite_unet_input_blocks_4_1_transformer_blocks_0_attn1_to_q.up.0.weight": (640, 64),
}


@pytest.mark.parametrize(
    ("shapes", "words"), [(CONTROL_LORA, "A ControlNet-LoRA, which"), (LLLITE, "A ControlNet-LLLite, which")]
)
def test_control_networks(shapes: Shapes, words: str, tmp_path: Path) -> None:
    found = identify(write_header(tmp_path / "c.safetensors", shapes))
    assert (found.kind, found.sentence.startswith(words)) == ("other_model", True)


@pytest.mark.parametrize("is_zip", [True, False])
def test_a_hypernetwork_of_a1111(is_zip: bool, tmp_path: Path) -> None:
    """A dictionary with the widths as keys, and a pair of modules for the keys and the values of each."""

    def module(width: int) -> OrderedDict[str, torch.Tensor]:
        return OrderedDict({"linear.0.weight": torch.ones(2 * width, width), "linear.1.weight": torch.ones(width, 2)})

    held: dict[Any, Any] = {width: (module(width), module(width)) for width in (320, 768)}
    held |= {"step": 100, "name": "x", "layer_structure": [1, 2, 1], "optional_info": ""}
    torch.save(held, tmp_path / "h.pt", _use_new_zipfile_serialization=is_zip)
    found = identify(tmp_path / "h.pt")
    assert (found.kind, found.sentence) == ("other_model", "A hypernetwork of A1111, which is not supported.")


# -- embeddings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["emp_params", "emb_params"])
@pytest.mark.parametrize("ends", [("",), ("_out",), ("", "_out")])
def test_embeddings_of_onetrainer(name: str, ends: tuple[str, ...], tmp_path: Path) -> None:
    tensors = {f"{name}{end}": torch.full((3, 768), float(n)) for n, end in enumerate(ends)}
    path = tmp_path / "e.safetensors"
    save_file(tensors, path)
    found = identify(path)
    assert (found.kind, found.model, found.facts["tokens"]) == ("embedding", "sd1", "3")
    assert ("output" in found.sentence) == ("_out" in ends)
    read = read_embedding(path, {"text_encoder": "emb_params"}, {"text_encoder": 768})
    assert {n.removeprefix("text_encoder"): float(t[0, 0]) for n, t in read.items()} == {
        end: float(n) for n, end in enumerate(ends)
    }


def test_an_output_embedding_of_two_encoders(tmp_path: Path) -> None:
    shapes: Shapes = {"clip_l_out": (2, 768), "clip_g_out": (2, 1280)}
    found, loads = who_loads_file(write_header(tmp_path / "e.safetensors", shapes))
    assert (found.kind, found.model) == ("embedding", "sdxl")
    assert not any(x.complete for x in loads)


def test_an_embedding_with_a_parameter_dict(tmp_path: Path) -> None:
    """The oldest embeddings, of the authors of textual inversion; A1111 allows the class, too."""
    parameters = nn.ParameterDict({"*": nn.Parameter(torch.full((2, 768), 0.5))})
    held = {"string_to_token": {"*": torch.tensor(265)}, "string_to_param": parameters}
    torch.save(held, tmp_path / "e.pt")
    found, loads = who_loads_file(tmp_path / "e.pt")
    assert (found.kind, found.model, found.facts["tokens"]) == ("embedding", "sd1", "2")
    assert "code" not in found.facts
    assert any(x.program == "A1111" and x.complete for x in loads)
    read = read_embedding(tmp_path / "e.pt", {"text_encoder": "emb_params"}, {"text_encoder": 768})
    assert torch.equal(read["text_encoder"], torch.full((2, 768), 0.5))


def test_a_module_that_only_has_the_name_of_a_parameter_dict_is_code(tmp_path: Path) -> None:
    torch.save({"string_to_param": nn.Linear(2, 2)}, tmp_path / "e.pt")
    assert "torch.nn.modules.linear.Linear" in identify(tmp_path / "e.pt").facts["code"]


# -- checkpoints ------------------------------------------------------------------------------------------------------


def real_shapes(model: str) -> Shapes:
    """The names and the shapes of every weight of a published model in the original layout."""
    configs = shipped_configs(model)
    classes = {p.name: p for p in FAMILIES[family_of(model)].parts}
    found: Shapes = {}
    for part, layout in layouts(model, configs).items():
        spec = classes[part]
        module = empty_part(load_factory(spec.model_class), configs[part])
        own = {n: tuple(t.shape) for n, t in module.state_dict().items()}
        for slot in layout.slots:
            shape = own.get(slot.key) or own[slot.key.removeprefix("text_model.")]
            shape = (shape[0] * len(slot.shares), *shape[1:])
            shape = tuple(reversed(shape)) if slot.transposed else (*shape, 1, 1) if slot.conv else shape
            found[f"{layout.prefix}{slot.original}"] = shape
    return found


UNET = "model.diffusion_model."


def averaged(shapes: Shapes) -> Shapes:
    """The same model with EMA weights alone, as LDM's `LitEma` names them."""
    others = {n: s for n, s in shapes.items() if not n.startswith(UNET)}
    own = {n.removeprefix("model.").replace(".", ""): s for n, s in shapes.items() if n.startswith(UNET)}
    return others | {f"model_ema.{n}": s for n, s in own.items()} | {"model_ema.decay": (), "model_ema.num_updates": ()}


def without(shapes: Shapes, *prefixes: str) -> Shapes:
    return {n: s for n, s in shapes.items() if not n.startswith(prefixes)}


TEXT = ("cond_stage_model.", "conditioner.")


@pytest.mark.parametrize("model", MODELS)
def test_parts_of_whole_models_at_their_real_sizes(model: str, tmp_path: Path) -> None:
    path, shapes = tmp_path / "m.safetensors", real_shapes(model)
    cases: tuple[tuple[Shapes, str], ...] = (
        (without(shapes, *TEXT), "without text encoders."),
        (averaged(shapes), "with EMA weights alone"),
        (without(averaged(shapes), *TEXT), "with EMA weights alone"),
        (without(averaged(shapes), "first_stage_model."), "without VAE."),
    )
    for given, words in cases:
        found = identify(write_header(path, given))
        assert (found.kind, found.model, found.is_model) == ("checkpoint", model, True), words
        assert words in found.sentence
        path.unlink()
    found = identify(write_header(path, {n: s for n, s in shapes.items() if n.startswith("first_stage_model.")}))
    assert found.kind == "vae"


@pytest.mark.parametrize("has_text", [True, False])
def test_a_model_of_unknown_widths_is_no_vae(has_text: bool, tmp_path: Path) -> None:
    shapes: Shapes = {
        "model.diffusion_model.input_blocks.0.0.weight": (8, 4, 3, 3),
        "model.diffusion_model.output_blocks.0.0.x": (8,),
        "model.diffusion_model.input_blocks.1.1.transformer_blocks.0.attn2.to_k.weight": (8, 48),
        "first_stage_model.encoder.down.0.block.0.conv1.weight": (8, 3, 3, 3),
        "first_stage_model.decoder.conv_in.weight": (8, 4, 3, 3),
    }
    shapes |= {"another_text_model.x": (1,)} if has_text else {}
    for given in (shapes, averaged(shapes)):
        assert identify(write_header(tmp_path / "m.safetensors", given)).kind not in ("vae", "embedding")


def test_ema_weights_that_are_alone_are_used(tmp_path: Path) -> None:
    path = write_header(tmp_path / "m.safetensors", averaged(real_shapes("sd1")))
    checkpoint = open_checkpoint(path)
    assert "unet" in checkpoint.parts
    for use_ema in (False, True):
        state = part_state(checkpoint, "unet", use_ema=use_ema)
        assert state["conv_in.weight"].shape == (320, 4, 3, 3)
    assert checkpoint.configs["unet"]["in_channels"] == 4


def test_the_dtype_of_a_model_is_that_of_most_of_its_weights(tmp_path: Path) -> None:
    """ComfyUI's scaled float8: matrices in float8, each with a scale in float32, and all else in float16."""
    tensors: dict[str, torch.Tensor] = {"scaled_fp8": torch.zeros(2, dtype=torch.float8_e4m3fn)}
    block = "model.diffusion_model.input_blocks.1.1.transformer_blocks.0.attn2"
    for name in ("to_q", "to_k", "to_v"):
        tensors[f"{block}.{name}.weight"] = torch.zeros(64, 768, dtype=torch.float8_e4m3fn)
        tensors[f"{block}.{name}.scale_weight"] = torch.ones((), dtype=torch.float32)
        tensors |= {f"{block}.{name}.x{n}": torch.zeros(2, dtype=torch.float16) for n in range(4)}
    tensors |= {"model.diffusion_model.input_blocks.0.0.weight": torch.zeros(64, 4, 3, 3, dtype=torch.float16)}
    tensors |= {"model.diffusion_model.output_blocks.0.0.x": torch.zeros(2, dtype=torch.float16)}
    tensors |= {"cond_stage_model.transformer.x": torch.zeros(2, dtype=torch.float16)}
    save_file(tensors, tmp_path / "m.safetensors")
    found, loads = who_loads_file(tmp_path / "m.safetensors")
    assert (found.kind, found.facts["dtype"]) == ("checkpoint", "float8")
    assert ", scaled float8" in found.sentence
    assert not any(x.complete for x in loads)
    assert open_checkpoint(tmp_path / "m.safetensors").tensors[f"{block}.to_k.weight"].dtype == torch.float32
    save_file({n: t for n, t in tensors.items() if not n.endswith("to_k.scale_weight")}, tmp_path / "m.safetensors")
    with pytest.raises(DarkroomError, match="lacks the scales of 1 weight"):
        open_checkpoint(tmp_path / "m.safetensors")


def test_a_plain_checkpoint_in_half_precision_stays_one(tmp_path: Path) -> None:
    assert "float16" in identify(write_header(tmp_path / "l.safetensors", kohya("sd1"))).sentence
    assert read_stored(tmp_path / "l.safetensors")
