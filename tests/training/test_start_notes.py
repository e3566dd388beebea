"""What a run and preflight say about the layers of a start file that the run does not train."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from modules.config.schema import Config
from modules.data.buckets import Size
from modules.families.protocol import ModelFamily
from tests.builders.adapter_files import Filled, whole_lora
from tests.builders.budgets import budget_of_run
from tests.builders.runs import assert_equal_tensors, run
from tests.builders.start_files import (
    UNET_ONLY,
    config_of_start,
    infos,
    is_text,
    norms_and_more,
    notes,
    result,
    starting,
)
from trainer.events import WarningRaised
from trainer.preflight import check
from trainer.preflight.budget import disk_need


@pytest.fixture
def config(any_model: Path, images: Path, tmp_path: Path) -> Config:
    """A run of a tiny model of each family."""
    return config_of_start(any_model, images, tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("other_layers", ["keep", "leave_out"])
def test_a_file_whose_only_extra_is_an_embedding_has_one_note(
    config: Config, any_model: Path, tmp_path: Path, other_layers: str
) -> None:
    def embedding(family: ModelFamily, filled: Filled) -> Mapping[str, torch.Tensor]:
        return {"bundle_emb.disc.string_to_param.*": filled(2, 24)}

    file = whole_lora(any_model, tmp_path / "a.safetensors", takes=lambda p: "attn1" in p[1], extra=embedding)
    start = starting(config, file, adapter={"other_layers": other_layers})
    [note] = notes(run(start))
    assert note == infos(start)["adapter.other_layers"]
    begins = "a.safetensors has 1 tensor of no layer (bundle_emb.disc.string_to_param.*) that this run does not train. "
    ends = "They are left out, as set."
    if other_layers == "keep":
        ends = (
            "They are kept and saved as they are. Tensors of no layer do nothing in the run. diffusers does "
            "not load a result that has bundled embeddings."
        )
    assert note == begins + ends


@pytest.mark.full
@pytest.mark.parametrize("any_model", ["tiny_sd"], indirect=True)
@pytest.mark.parametrize("parts", [{}, UNET_ONLY], ids=["trained", "kept"])
def test_a_layer_named_twice_is_written_once(
    config: Config, any_model: Path, tmp_path: Path, parts: dict[str, Any]
) -> None:
    """`lora_te1_` comes before `lora_te_` by name; the result has the second name, which the file has too."""
    file = whole_lora(any_model, tmp_path / "whole.safetensors")
    first = {n.replace("lora_te_", "lora_te1_"): t for n, t in load_file(file).items()}
    # A copy of another kind: its factors must not be mixed with those of the first.
    copies = {n.replace("lora_up.weight", "hada_w1_a"): t * 7 for n, t in load_file(file).items() if is_text(n)}
    save_file(first | copies, file)
    start = starting(config, file, **parts)
    ran = run(start)
    after = result(ran)
    assert {n.replace("lora_te_", "lora_te1_") for n in after} == first.keys()
    text = {n: t for n, t in after.items() if is_text(n)}
    if parts:
        assert_equal_tensors(text, {n: first[n.replace("lora_te_", "lora_te1_")] for n in text})
    assert not any(t.equal(copies[n]) for n, t in text.items() if n.endswith("lora_down.weight"))
    said = [w.message for w in ran.of(WarningRaised) if "names layers twice" in w.message]
    assert len(said) == 1
    assert f"{len(copies)} tensors of the second left out" in said[0]
    assert infos(start)["adapter.other_layers"] == said[0]


@pytest.mark.full
@pytest.mark.parametrize("any_model", ["tiny_sd"], indirect=True)
def test_a_second_copy_is_named_as_such_where_the_others_are_left_out(
    config: Config, any_model: Path, tmp_path: Path
) -> None:
    """To keep the other layers, which is the advice about layers that are left out, would not keep it."""
    file = whole_lora(any_model, tmp_path / "whole.safetensors")
    tensors = load_file(file)
    text = [n for n in tensors if is_text(n)]
    save_file(tensors | {n.replace("lora_te_", "lora_te1_"): tensors[n].clone() for n in text}, file)
    start = starting(config, file, adapter={"other_layers": "leave_out"}, **UNET_ONLY)
    [note] = notes(run(start))
    assert note == infos(start)["adapter.other_layers"]
    assert "of no layer" not in note
    assert f"and {len(text)} tensors of the second left out" in note


@pytest.mark.full
def test_preflight_says_the_same_from_the_header(config: Config, any_model: Path, tmp_path: Path) -> None:
    file = whole_lora(any_model, tmp_path / "whole.safetensors", rank_of=lambda place: 3, extra=norms_and_more)
    start = starting(config, file, **UNET_ONLY)
    told = infos(start)
    assert f"The adapter continues {file.name}. A LoRA" in told["adapter.start_from"]
    assert "whole.safetensors have rank 3, which they keep. The rank set here, 4, is not used" in told["adapter.rank"]
    [note] = notes(run(start))
    assert told["adapter.other_layers"] == note
    same = whole_lora(any_model, tmp_path / "same.safetensors", takes=lambda place: "attentions" in place[1])
    assert infos(starting(config, same, **UNET_ONLY)).keys() == {"adapter.start_from"}
    fewer = whole_lora(any_model, tmp_path / "fewer.safetensors", takes=lambda p: "attn1" in p[1], rank_of=lambda p: 2)
    assert "is used for the " in infos(starting(config, fewer, **UNET_ONLY))["adapter.rank"]
    nothing = whole_lora(any_model, tmp_path / "text.safetensors", takes=lambda place: place[0] != "unet")
    assert "does not train, and no others" in infos(starting(config, nothing, **UNET_ONLY))["adapter.other_layers"]


@pytest.mark.full
def test_the_estimate_counts_the_shapes_of_the_file(config: Config, any_model: Path, tmp_path: Path) -> None:
    file = whole_lora(any_model, tmp_path / "whole.safetensors", rank_of=lambda place: 3 + len(place[1]) % 3)
    start = starting(config, file)
    sizes = {Size(64, 64): 5}
    need, plain = (disk_need(budget_of_run(c, sizes), sizes, num_captions=1) for c in (start, config))
    assert need is not None
    assert plain is not None
    ran = run(start)
    payload = sum(tensor.nbytes for name, tensor in result(ran).items() if "alpha" not in name)
    assert need.result_bytes == payload != plain.result_bytes


@pytest.mark.parametrize("any_model", ["tiny_sd"], indirect=True)
def test_a_start_file_keeps_its_axis_of_dora(config: Config, any_model: Path, tmp_path: Path) -> None:
    """Preflight says which programs apply the result otherwise, and which format cannot hold it."""
    axes = {}
    for on_outputs in (True, False):
        file = whole_lora(any_model, tmp_path / f"{on_outputs}.safetensors", takes=lambda p: "attn1" in p[1])
        tensors = dict(load_file(file))
        for name, up in list(tensors.items()):
            if name.endswith("lora_up.weight"):
                down = tensors[name.replace("lora_up", "lora_down")]
                shape = (up.shape[0], 1) if on_outputs else (1, down.shape[1])
                tensors[name.replace("lora_up.weight", "dora_scale")] = torch.ones(shape)
        save_file(tensors, file)
        axes[on_outputs] = file

    def told(file: Path, *, on_outputs: bool, form: str) -> list[str]:
        adapter = {"decompose": True, "decompose_output_axis": on_outputs}
        start = starting(config, file, adapter=adapter, output={"format": form})
        about = [p for p in check(start).problems if p.path == "adapter.start_from" and "axis" in p.message]
        return [p.severity for p in about]

    assert told(axes[True], on_outputs=False, form="kohya") == ["warning"]
    assert told(axes[False], on_outputs=True, form="diffusers") == ["error"]
    assert told(axes[True], on_outputs=True, form="diffusers") == []
    assert told(axes[False], on_outputs=False, form="kohya") == []
