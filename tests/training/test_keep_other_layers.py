"""Layers of a start file that a run does not train: they act in the run as in the file, and are written again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from modules.adapters.stored import read_adapter
from modules.config.schema import Config
from modules.data.buckets import Size
from modules.families.protocol import ModelFamily
from modules.formats.adapter_names import DOWN, UP
from tests.builders.adapter_files import Filled, merged, places, whole_lora
from tests.builders.configs import laid_over, small_config
from tests.builders.pipelines import load_tiny
from tests.builders.runs import Ran, assert_equal_tensors, run
from trainer.events import RunFailed, StepFinished, ValidationFinished, WarningRaised
from trainer.preflight import check
from trainer.preflight.budget import disk_need, memory_estimate
from trainer.run_folder.start_copy import existing_start_copy, start_copy_in

TEXT = ("text_encoder", "text_encoder_2")
UNET_ONLY: dict[str, Any] = {"parts": {name: {"train": False} for name in TEXT}}


@pytest.fixture
def config(any_model: Path, images: Path, tmp_path: Path) -> Config:
    """A run of a tiny model of each family that validates before its first step and writes float32."""
    return laid_over(
        small_config(tmp_path, model=any_model, images=images),
        {
            "training": {"epochs": 1, "learning_rate": 0.02},
            "adapter": {"rank": 4, "alpha": 4.0},
            "validation": {"every": {"n": 1, "unit": "epoch"}},
            "concepts": [{"path": str(images)}, {"path": str(images), "kind": "validation"}],
            "output": {"dtype": "float32"},
        },
    )


def starting(config: Config, file: Path, **changes: Any) -> Config:
    adapter = {"start_from": str(file), **changes.pop("adapter", {})}
    return laid_over(config, {"adapter": adapter, **changes})


def first_loss(config: Config) -> float:
    ran = run(config)
    assert ran.finished.outcome == "finished"
    loss = ran.of(ValidationFinished)[0].loss
    assert loss is not None
    return loss


def result(ran: Ran) -> dict[str, torch.Tensor]:
    """The tensors of a run's result, read now: another run of the same config replaces it."""
    return {name: tensor.clone() for name, tensor in load_file(ran.finished.model_path).items()}


def notes(ran: Ran) -> list[str]:
    return [w.message for w in ran.of(WarningRaised) if "that this run does not train" in w.message]


def is_text(name: str) -> bool:
    return name.startswith("lora_te")


def test_a_run_of_the_unet_keeps_the_text_layers(config: Config, any_model: Path, tmp_path: Path) -> None:
    file = whole_lora(any_model, tmp_path / "whole.safetensors")
    ran = run(starting(config, file, **UNET_ONLY))
    before, after = load_file(file), result(ran)
    # In the run they act as in every program that loads the file: as if it were in the model's weights.
    plain = laid_over(config, {"model": {"base_model": str(merged(any_model, tmp_path / "merged", file))}, **UNET_ONLY})
    begun = ran.of(ValidationFinished)[0].loss
    assert begun == pytest.approx(first_loss(plain), rel=1e-5)
    assert begun != pytest.approx(first_loss(laid_over(config, UNET_ONLY)), rel=1e-3)
    # They are written again, bit for bit.
    assert before.keys() == after.keys()
    assert_equal_tensors({n: after[n] for n in after if is_text(n)}, {n: before[n] for n in before if is_text(n)})
    assert any(name.endswith("lora_up.weight") and not before[name].equal(after[name]) for name in before)
    # Said once, with their number.
    [note] = notes(ran)
    assert "They are kept: they act in the run" in note


def test_the_last_text_layer_and_the_projection_are_kept(config: Config, any_model: Path, tmp_path: Path) -> None:
    file = whole_lora(any_model, tmp_path / "whole.safetensors", dtype=torch.bfloat16)
    # The layers that clip skip, or SDXL's first encoder, leaves out; the projection has no name that all programs know.
    skipping = laid_over(config, {"model": {"clip_skip": 2 if "xl" not in any_model.name else 1}})
    skipping = laid_over(skipping, {"output": {"dtype": "bfloat16"}, "adapter": {"layers": "all"}})
    ran = run(starting(skipping, file))
    before, after = load_file(file), result(ran)
    assert before.keys() == after.keys()
    last = {name for name in before if name.startswith(("lora_te_", "lora_te1_")) and "encoder_layers_2_" in name}
    last |= {name for name in before if "text_projection" in name}
    assert any("text_projection" in name for name in last) == ("xl" in any_model.name)
    assert_equal_tensors({n: after[n] for n in last}, {n: before[n] for n in last})
    assert all(any(p in n for n in before if not before[n].equal(after[n])) for p in ("lora_te", "lora_unet"))
    model = str(merged(any_model, tmp_path / "merged", file))
    begun = first_loss(laid_over(skipping, {"model": {"base_model": model}}))
    assert ran.of(ValidationFinished)[0].loss == pytest.approx(begun, rel=1e-5)


def test_they_can_be_left_out(config: Config, any_model: Path, tmp_path: Path) -> None:
    file = whole_lora(any_model, tmp_path / "whole.safetensors")
    unet = tmp_path / "unet.safetensors"
    save_file({n: t for n, t in load_file(file).items() if not is_text(n)}, unet)
    ran = run(starting(config, file, adapter={"other_layers": "leave_out", "layers": "all"}, **UNET_ONLY))
    assert not any(is_text(name) for name in result(ran))
    plain = laid_over(config, {"model": {"base_model": str(merged(any_model, tmp_path / "merged", unet))}, **UNET_ONLY})
    assert ran.of(ValidationFinished)[0].loss == pytest.approx(first_loss(plain), rel=1e-5)
    [note] = notes(ran)
    assert "left out" in note


@pytest.mark.parametrize("change", ["deleted", "another"])
def test_a_resumed_run_needs_the_file_no_more(config: Config, any_model: Path, tmp_path: Path, change: str) -> None:
    file = whole_lora(any_model, tmp_path / "whole.safetensors", rank_of=lambda place: 3)
    two = starting(config, file, **UNET_ONLY, backup={"every": {"n": 1, "unit": "step"}, "keep": 0})
    straight = run(two)
    trained = result(straight)
    steps = straight.of(StepFinished)
    if change == "deleted":
        file.unlink()
    else:
        whole_lora(any_model, file, rank_of=lambda place: 5)
    backup = Path(straight.finished.backup_path).parent / "step-00000001"
    assert not check(two, resume_from=backup).errors
    resumed = run(two, resume_from=backup)
    assert_equal_tensors(resumed.weights, straight.weights)
    assert [s.loss for s in resumed.of(StepFinished)] == [s.loss for s in steps[1:]]
    assert_equal_tensors(result(resumed), trained)
    assert not notes(resumed)


def norms_and_more(family: ModelFamily, filled: Filled) -> Mapping[str, torch.Tensor]:
    """What LyCORIS also writes: norms, biases, a LoHa layer in the same file, and a bundled embedding."""
    tensors: dict[str, torch.Tensor] = {}
    for part, path in places(family, nn.LayerNorm, nn.GroupNorm):
        if part != "unet":
            continue
        width = family.parts[part].module.get_submodule(path).weight.shape[0]  # type: ignore[union-attr]
        name = family.lora_naming.kohya_name(part, path)
        tensors |= {f"{name}.w_norm": filled(width), f"{name}.b_norm": filled(width)}
    tensors["bundle_emb.disc.string_to_param.*"] = filled(2, 24)
    return tensors


def test_norms_and_embeddings_are_kept(config: Config, any_model: Path, tmp_path: Path) -> None:
    file = whole_lora(any_model, tmp_path / "whole.safetensors", extra=norms_and_more)
    tensors = load_file(file)
    family = load_tiny(any_model)
    changes = [
        (place, which, tensors[f"{family.lora_naming.kohya_name(*place)}.{factor}"].double())
        for place in places(family, nn.LayerNorm, nn.GroupNorm)
        if place[0] == "unet"
        for which, factor in (("weight", "w_norm"), ("bias", "b_norm"))
    ]
    ran = run(starting(config, file))
    after = result(ran)
    plain = laid_over(config, {"model": {"base_model": str(merged(any_model, tmp_path / "merged", file, changes))}})
    assert ran.of(ValidationFinished)[0].loss == pytest.approx(first_loss(plain), rel=1e-5)
    assert after.keys() == tensors.keys()
    kept = [name for name in tensors if "norm" in name.split(".")[-1] or name.startswith("bundle_emb")]
    assert kept
    assert_equal_tensors({n: after[n] for n in kept}, {n: tensors[n] for n in kept})
    [note] = notes(ran)
    assert "1 tensor of no layer (bundle_emb.disc" in note


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
            "They are kept and written again as they are. Tensors of no layer do nothing in the run. diffusers does "
            "not load a result that has bundled embeddings."
        )
    assert note == begins + ends


def test_several_ranks_in_one_file(config: Config, any_model: Path, tmp_path: Path) -> None:
    file = whole_lora(
        any_model,
        tmp_path / "whole.safetensors",
        rank_of=lambda place: 2 + len(place[1]) % 4,
        takes=lambda place: "attn1" not in place[1],
        alpha=None,
    )
    ran = run(starting(config, file, adapter={"alpha": 2.0}))
    before, after = load_file(file), result(ran)
    with safe_open(ran.finished.model_path, "pt") as stored:
        facts = stored.metadata()
    plain = laid_over(config, {"model": {"base_model": str(merged(any_model, tmp_path / "merged", file))}})
    assert ran.of(ValidationFinished)[0].loss == pytest.approx(first_loss(plain), rel=1e-5)
    ranks = {name: tensor.shape[0] for name, tensor in after.items() if name.endswith("down.weight")}
    assert all(rank == (before[name].shape[0] if name in before else 4) for name, rank in ranks.items())
    assert len(set(ranks.values())) == 4
    largest = [name.removesuffix("lora_down.weight") for name, rank in ranks.items() if rank == 5]
    [(alpha, _)] = Counter(float(after[f"{name}alpha"]) for name in largest).most_common(1)
    assert (facts["ss_network_dim"], facts["ss_network_alpha"]) == ("5", f"{alpha:g}")


def test_a_tucker_lora_becomes_a_plain_one(config: Config, any_model: Path, tmp_path: Path) -> None:
    file = whole_lora(any_model, tmp_path / "whole.safetensors", tucker=True)
    ran = run(starting(config, file, adapter={"layers": "all"}))
    after = result(ran)
    plain = laid_over(config, {"model": {"base_model": str(merged(any_model, tmp_path / "merged", file))}})
    assert ran.of(ValidationFinished)[0].loss == pytest.approx(first_loss(plain), rel=1e-5)
    assert any("lora_mid" in name for name in load_file(file))
    assert not any("lora_mid" in name for name in after)
    assert any("Tucker" in w.message for w in ran.of(WarningRaised))


def with_a_loha(family: ModelFamily, filled: Filled) -> Mapping[str, torch.Tensor]:
    """A LoHa on the first feed-forward layer of the UNet, as in LyCORIS files of several kinds."""
    part, path = FEED_FORWARD
    weight = family.parts[part].module.get_submodule(path).weight
    assert isinstance(weight, torch.Tensor)
    rows, columns = weight.shape
    name = family.lora_naming.kohya_name(part, path)
    sizes = {"hada_w1_a": (rows, 2), "hada_w1_b": (2, columns), "hada_w2_a": (rows, 2), "hada_w2_b": (2, columns)}
    return {f"{name}.{factor}": filled(*size) * 5 for factor, size in sizes.items()}


FEED_FORWARD = ("unet", "mid_block.attentions.0.transformer_blocks.0.ff.net.0.proj")


@pytest.mark.parametrize("choice", ["keep", "leave_out"])
def test_a_layer_of_another_kind_is_kept_instead_of_trained(
    config: Config, any_model: Path, tmp_path: Path, choice: str
) -> None:
    file = whole_lora(
        any_model, tmp_path / "mixed.safetensors", takes=lambda place: place != FEED_FORWARD, extra=with_a_loha
    )
    ran = run(starting(config, file, adapter={"other_layers": choice}))
    before, after = load_file(file), result(ran)
    loha = {name: tensor for name, tensor in before.items() if ".hada_" in name}
    [layer] = {name.split(".")[0] for name in loha}
    own = {name: tensor for name, tensor in after.items() if name.split(".")[0] == layer}
    if choice == "keep":  # a file holds one change of a weight
        assert_equal_tensors(own, loha)
        change = (loha[f"{layer}.hada_w1_a"] @ loha[f"{layer}.hada_w1_b"]) * (
            loha[f"{layer}.hada_w2_a"] @ loha[f"{layer}.hada_w2_b"]
        )
        model = merged(any_model, tmp_path / "merged", file, [(FEED_FORWARD, "weight", change.double())])
        plain = laid_over(config, {"model": {"base_model": str(model)}})
        assert ran.of(ValidationFinished)[0].loss == pytest.approx(first_loss(plain), rel=1e-5)
    else:
        assert {name.partition(".")[2] for name in own} == {"lora_down.weight", "lora_up.weight", "alpha"}


def test_the_diffusers_form_has_all_that_it_can_hold(config: Config, any_model: Path, tmp_path: Path) -> None:
    file = whole_lora(any_model, tmp_path / "whole.safetensors", extra=norms_and_more, tucker=True)
    first = starting(laid_over(config, {"output": {"format": "diffusers"}}), file, **UNET_ONLY)
    ran = run(first)
    [note] = notes(ran)
    assert "The diffusers format cannot hold" in note
    assert not any("norm" in name.split(".")[-1] or "bundle" in name for name in result(ran))
    # Started from again, it is the same LoRA: with the kept text layers, and Tucker's core in its matrices.
    copy = tmp_path / "diffusers.safetensors"
    copy.write_bytes(Path(ran.finished.model_path).read_bytes())
    again = first_loss(starting(config, copy, **UNET_ONLY))
    assert again == pytest.approx(ran.of(ValidationFinished)[-1].loss, rel=1e-4) or "norm" in note
    kept = read_adapter(copy, load_tiny(any_model).lora_naming, modules_of(load_tiny(any_model))).layers
    before = read_adapter(file, load_tiny(any_model).lora_naming, modules_of(load_tiny(any_model))).layers
    text = {(k.part, k.path): k for k in kept if k.part != "unet"}
    for layer in (k for k in before if k.part != "unet"):
        down, up = (text[layer.part, layer.path].factors[n] for n in (DOWN, UP))
        scale = text[layer.part, layer.path].scale
        torch.testing.assert_close(
            scale * up @ down, layer.scale * layer.factors[UP] @ layer.factors[DOWN], rtol=1e-5, atol=1e-7
        )


def modules_of(family: ModelFamily) -> dict[str, nn.Module]:
    return {name: part.module for name, part in family.parts.items()}


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


def text_entries(config: Config) -> set[str]:
    return {p.stem for p in (Path(config.general.cache_dir) / "text").rglob("*.safetensors")}


def test_another_start_file_has_other_cached_text_states(config: Config, any_model: Path, tmp_path: Path) -> None:
    one = whole_lora(any_model, tmp_path / "one.safetensors")
    other = whole_lora(any_model, tmp_path / "other.safetensors", rank_of=lambda place: 2)
    entries = []
    for file in (one, other, one):
        run(starting(config, file, **UNET_ONLY))
        entries.append(text_entries(config))
    run(starting(config, one, adapter={"other_layers": "leave_out"}, **UNET_ONLY))
    left_out = text_entries(config)
    assert len(entries[1]) == 2 * len(entries[0])
    assert entries[2] == entries[1]
    assert len(left_out) == 3 * len(entries[0])
    run(laid_over(config, UNET_ONLY))  # without any adapter on the encoders the states are the same
    assert text_entries(config) == left_out


def infos(config: Config) -> dict[str, str]:
    report = check(config)
    assert not report.errors
    return {p.path: p.message for p in report.problems if p.severity == "info" and p.path.startswith("adapter.")}


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
    assert "is that of the " in infos(starting(config, fewer, **UNET_ONLY))["adapter.rank"]
    nothing = whole_lora(any_model, tmp_path / "text.safetensors", takes=lambda place: place[0] != "unet")
    assert "does not train, and no others" in infos(starting(config, nothing, **UNET_ONLY))["adapter.other_layers"]


def test_the_estimate_counts_the_shapes_of_the_file(config: Config, any_model: Path, tmp_path: Path) -> None:
    file = whole_lora(any_model, tmp_path / "whole.safetensors", rank_of=lambda place: 3 + len(place[1]) % 3)
    start = starting(config, file)
    sizes = {Size(64, 64): 5}
    need, plain = (disk_need(c, sizes, num_captions=1) for c in (start, config))
    assert need is not None
    assert plain is not None
    ran = run(start)
    payload = sum(tensor.nbytes for name, tensor in result(ran).items() if "alpha" not in name)
    assert need.result_bytes == payload != plain.result_bytes


def failure(config: Config) -> tuple[str, str]:
    ending = run(config).ending
    assert isinstance(ending, RunFailed)
    return ending.message, ending.advice


def test_a_file_of_another_width_is_refused(config: Config, any_model: Path, tiny_sd2: Path, tmp_path: Path) -> None:
    file = whole_lora(tiny_sd2, tmp_path / "whole.safetensors")
    message, advice = failure(starting(config, file))
    assert "model" in message
    assert advice.startswith("Choose a")


@pytest.mark.parametrize("num_more", [-1, 0, 1])
def test_preflight_refuses_a_file_of_a_bigger_model_as_the_run_does(
    config: Config, any_model: Path, tmp_path: Path, num_more: int
) -> None:
    """Layers that the model does not have are kept unless they are the most: then the file is of another model."""

    def deeper(family: ModelFamily, filled: Filled) -> Mapping[str, torch.Tensor]:
        found = [place for place in places(family) if "attn1" in place[1]]
        names = [f"lora_unet_mid_block_attentions_0_transformer_blocks_{50 + n}_attn1_to_q" for n in range(len(found))]
        names = [*names, "lora_unet_mid_block_attentions_0_transformer_blocks_99_attn1_to_q"][: len(found) + num_more]
        shapes = {"lora_down.weight": (4, 32), "lora_up.weight": (32, 4)}
        return {f"{name}.{factor}": filled(*shape) for name in names for factor, shape in shapes.items()}

    file = whole_lora(any_model, tmp_path / "big.safetensors", takes=lambda p: "attn1" in p[1], extra=deeper)
    start = starting(config, file)
    report = check(start)
    if num_more < 1:
        assert not report.errors
        assert "tensors of no layer" in infos(start)["adapter.other_layers"]
        return
    message, advice = failure(start)
    [error] = report.errors
    assert (error.path, error.advice) == ("adapter.start_from", advice)
    assert advice == "Choose a LoRA made for a model of this size."
    assert error.message.endswith(message.removeprefix(file.name))
    assert not [p for p in report.problems if p.path in ("adapter.other_layers", "adapter.rank")]


def test_no_note_stands_beside_an_error_about_the_file(
    config: Config, any_model: Path, tiny_sd: Path, tmp_path: Path
) -> None:
    text, width = ("lora_te1", 2048) if any_model == tiny_sd else ("lora_te", 768)  # of the other family
    tensors = {}
    for layer, inputs, outputs in (
        ("lora_unet_down_blocks_1_attentions_0_transformer_blocks_0_attn2_to_k", width, 640),
        ("lora_unet_down_blocks_1_attentions_0_proj_out", 640, 640),
        (f"{text}_text_model_encoder_layers_0_mlp_fc1", 768, 3072),
    ):
        tensors[f"{layer}.lora_down.weight"] = torch.ones(4, inputs)
        tensors[f"{layer}.lora_up.weight"] = torch.ones(outputs, 4)
    file = tmp_path / "other.safetensors"
    save_file(tensors, file)
    report = check(starting(config, file, adapter={"layers": "attention"}, **UNET_ONLY))
    assert [e.path for e in report.errors] == ["adapter.start_from"]
    assert not [p for p in report.problems if p.path in ("adapter.other_layers", "adapter.rank")]


def test_a_part_whose_layers_are_all_of_another_kind_is_named(config: Config, any_model: Path, tmp_path: Path) -> None:
    custom = {"layers": "custom", "custom_layers": FEED_FORWARD[1]}
    file = whole_lora(any_model, tmp_path / "mixed.safetensors", takes=lambda p: "attn1" in p[1], extra=with_a_loha)
    start = starting(config, file, adapter=custom, **UNET_ONLY)
    message, advice = failure(start)
    assert "has a change of another kind on each of its layers" in message
    assert '"Leave out" under Other layers' in advice
    assert run(laid_over(start, {"adapter": {"other_layers": "leave_out"}})).finished.outcome == "finished"


@pytest.mark.parametrize("any_model", ["tiny_sd"], indirect=True)
@pytest.mark.parametrize(
    ("kept", "lacks", "is_alone"),
    [
        ("lora_down.weight", "lora_up.weight", False),
        ("lora_down.weight", "lora_up.weight", True),
        ("dora_scale", "lora_down.weight", False),
        ("hada_w1_a", "hada_w1_b", False),
        ("hada_w1_a", "hada_w1_b", True),
        ("hada_w1_a hada_w1_b hada_w2_a hada_w2_b hada_t1", "hada_t2", False),
        ("lokr_w1 lokr_w2_a", "lokr_w2_b", False),
        ("lokr_t2", "lokr_w1", True),
    ],
)
def test_an_incomplete_file_is_named(
    config: Config, any_model: Path, tmp_path: Path, kept: str, lacks: str, is_alone: bool
) -> None:
    def broken(family: ModelFamily, filled: Filled) -> Mapping[str, torch.Tensor]:
        name = family.lora_naming.kohya_name(*FEED_FORWARD)
        return {f"{name}.{factor}": filled(*([2] * (4 if "_t" in factor else 2))) for factor in kept.split()}

    file = whole_lora(
        any_model, tmp_path / "broken.safetensors", takes=lambda p: not is_alone and "attn1" in p[1], extra=broken
    )
    start = starting(config, file)
    message, advice = failure(start)
    [error] = check(start).errors
    for told in (message, error.message):
        assert told.endswith(f"broken.safetensors is incomplete: {'.'.join(FEED_FORWARD)} has no {lacks}.")
    assert advice == error.advice == "Download it again."


@pytest.mark.parametrize("any_model", ["tiny_sd"], indirect=True)
@pytest.mark.parametrize("has_alpha", [False, True])
@pytest.mark.parametrize(
    ("factor", "shape", "damage"),
    [
        ("lora_down.weight", (), "its lora_down.weight is a single number instead of a matrix"),
        ("lora_down.weight", (0, 4), "its lora_down.weight has no rows"),
        ("hada_w1_b", (), "its hada_w1_b is a single number instead of a matrix"),
        ("lokr_w2_b", (0, 4), "its lokr_w2_b has no rows"),
    ],
)
def test_a_matrix_without_axes_or_rows_is_named(
    config: Config, any_model: Path, tmp_path: Path, factor: str, shape: tuple[int, ...], damage: str, has_alpha: bool
) -> None:
    def broken(family: ModelFamily, filled: Filled) -> Mapping[str, torch.Tensor]:
        name = family.lora_naming.kohya_name(*FEED_FORWARD)
        tensors = {f"{name}.{factor}": torch.ones(shape)}
        return tensors | ({f"{name}.alpha": torch.tensor(2.0)} if has_alpha else {})

    file = whole_lora(any_model, tmp_path / "broken.safetensors", takes=lambda p: "attn1" in p[1], extra=broken)
    start = starting(config, file)
    message, advice = failure(start)
    [error] = check(start).errors
    for sentence in (message, error.message):
        assert sentence.endswith(f"broken.safetensors is damaged at {'.'.join(FEED_FORWARD)}: {damage}.")
    assert advice == error.advice == "Download it again."


@pytest.mark.parametrize("end", ["lora_down.weight", "alpha"])
def test_a_file_with_nan_is_named(config: Config, any_model: Path, tmp_path: Path, end: str) -> None:
    file = whole_lora(any_model, tmp_path / "whole.safetensors")
    tensors = load_file(file)
    name = next(name for name in tensors if name.endswith(end))
    save_file({**tensors, name: torch.full_like(tensors[name], float("nan"))}, file)
    message, advice = failure(starting(config, file))
    assert message.startswith("whole.safetensors has NaN or infinite values")
    assert advice.startswith("Choose another file")


@pytest.mark.parametrize("change", ["deleted", "another"])
def test_the_estimates_of_a_resumed_run_are_of_its_own_copy(
    config: Config, any_model: Path, tmp_path: Path, change: str
) -> None:
    file = whole_lora(any_model, tmp_path / "whole.safetensors", rank_of=lambda place: 150, extra=norms_and_more)
    start = starting(config, file, **UNET_ONLY)
    sizes = {Size(64, 64): 5}
    memory, need = memory_estimate(start, sizes), disk_need(start, sizes, num_captions=1)
    preview = check(start).preview
    assert preview is not None
    backup = Path(run(start).finished.backup_path)
    file.unlink()
    if change == "another":
        whole_lora(any_model, file)
    assert memory_estimate(start, sizes) != memory
    copy = existing_start_copy(backup.parent.parent)
    assert memory_estimate(start, sizes, start_copy=copy) == memory
    assert disk_need(start, sizes, num_captions=1, start_copy=copy) == need
    resumed = check(start, resume_from=backup).preview
    assert resumed is not None
    assert resumed.memory == preview.memory


def test_a_resumed_run_without_a_copy_asks_for_the_file(config: Config, any_model: Path, tmp_path: Path) -> None:
    file = whole_lora(any_model, tmp_path / "whole.safetensors")
    start = starting(config, file)
    backup = Path(run(start).finished.backup_path)
    start_copy_in(backup.parent.parent).unlink()  # as in a run of an earlier version
    file.unlink()
    [error] = check(start, resume_from=backup).errors
    assert error.advice.startswith("Put the file back")
    more = laid_over(start, {"training": {"epochs": 2}})
    ending = run(more, resume_from=backup).ending
    assert isinstance(ending, RunFailed)
    assert ending.advice.startswith("Put the file back")
