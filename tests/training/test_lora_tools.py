"""The LoRA tools on tiny models: exact merges, sums, resizes, extractions and strengths per block."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from modules.adapters.stack import AdapterStack
from modules.adapters.tools.blocks import scale_blocks
from modules.adapters.tools.combine import combine, resize
from modules.adapters.tools.extract import extract_difference
from modules.adapters.tools.low_rank import LowRank, RankChoice, reduce_matrix, reduce_product
from modules.adapters.tools.merge import merge_into_model
from modules.adapters.tools.opening import WeightedFile, open_adapter
from modules.adapters.tools.results import TOOL_KEY, LoraResult, tool_metadata, write_result
from modules.families.kinds.conversion import Source, convert, open_source
from modules.families.parts.single_file.models import CONFIGS_KEY
from modules.families.registry import published_model
from modules.formats.adapter_file import AdapterFile, read_adapter_file
from modules.formats.adapter_names import DOWN
from modules.system.errors import DarkroomError
from tests.builders.adapter_files import Filled, lora_factors, places
from tests.builders.pipelines import load_tiny

pytestmark = pytest.mark.usefixtures("one_thread")
NOW = datetime(2026, 1, 2, 3, 4, 5)
FULL = RankChoice()


def nothing(_done: int, _total: int) -> None:
    """Report no progress."""


def write_lora(path: Path, model: Path, *, seed: int, rank: int = 4, alpha: float = 2.0, **extra: Any) -> Path:
    """Write a LoRA on every layer of a tiny model, with the model's size in its metadata."""
    family, filled = load_tiny(model), Filled(seed)
    tensors: dict[str, torch.Tensor] = {}
    for part, layer in places(family):
        name = family.lora_naming.kohya_name(part, layer)
        weight = family.parts[part].module.get_submodule(layer).weight
        for factor, tensor in lora_factors(weight, rank, filled).items():
            tensors[f"{name}.{factor}"] = tensor.contiguous()
        tensors[f"{name}.alpha"] = torch.tensor(alpha)
    architecture = f"{published_model(family.lora_naming.model).architecture}/lora"
    metadata = {CONFIGS_KEY: family.lora_naming.own_configs, "modelspec.architecture": architecture}
    save_file(tensors | extra, path, metadata)
    return path


def changes(source: Source) -> Mapping[tuple[str, str], torch.Tensor]:
    """The change of every layer by a LoRA file, from its factors."""
    assert source.adapter is not None
    found = {}
    for x in source.adapter.layers:
        down, up = x.factors[DOWN].double().flatten(1), x.factors["lora_up.weight"].double().flatten(1)
        found[x.part, x.path] = x.scale * up @ down
    return found


def assert_same(one: Mapping[tuple[str, str], torch.Tensor], other: Mapping[tuple[str, str], torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for place in one:
        assert torch.allclose(one[place], other[place], atol=1e-5, rtol=1e-5), place


def written(result: LoraResult, like: Source, path: Path) -> Source:
    """Write a result and open it again."""
    write_result(result, like, path, metadata=tool_metadata("test", []), dtype=None, created=NOW)
    return open_adapter(path)


def weighted(*files: tuple[Path, float]) -> list[WeightedFile]:
    return [WeightedFile(path, strength) for path, strength in files]


def predictions(folder: Path, files: Sequence[WeightedFile] = ()) -> tuple[torch.Tensor, torch.Tensor]:
    """The text states and the denoiser's output of a tiny model, with adapter files on it."""
    family = load_tiny(folder)
    stack = AdapterStack({n: p.module for n, p in family.parts.items()}, family.lora_naming)
    stack.put(files)
    noise = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        conditioning = family.encode_prompts(["a red house by the sea"])
        return next(iter(conditioning.tensors().values())), family.predict(noise, torch.tensor([500]), conditioning)


@pytest.fixture(scope="module")
def loras(tiny_sd: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two LoRA files of different ranks; nobody may write to them."""
    folder = tmp_path_factory.mktemp("loras")
    one = write_lora(folder / "one.safetensors", tiny_sd, seed=1)
    return one, write_lora(folder / "two.safetensors", tiny_sd, seed=2, rank=3, alpha=3.0)


@pytest.mark.parametrize("form", ["folder", "single"])
def test_a_merged_model_equals_the_model_with_its_loras(
    form: Any, tiny_sd: Path, loras: tuple[Path, Path], tmp_path: Path
) -> None:
    files = weighted((loras[0], 0.7), (loras[1], -0.4))
    found = merge_into_model(open_source(tiny_sd), files, dtype=None)
    out = tmp_path / ("model" if form == "folder" else "model.safetensors")
    convert(found.source, out, form, dtype=None, created=NOW)
    if form == "single":
        convert(open_source(out), tmp_path / "model", "folder", dtype=None, created=NOW)
    expected, plain, now = predictions(tiny_sd, files), predictions(tiny_sd), predictions(tmp_path / "model")
    for own, other, base in zip(now, expected, plain, strict=True):
        assert torch.allclose(own, other, atol=1e-5, rtol=1e-5)
        assert not torch.allclose(own, base, atol=1e-3)
    metadata = found.source.metadata or {}
    assert json.loads(metadata[TOOL_KEY])["inputs"][1] == {"file": "two.safetensors", "strength": -0.4}
    assert metadata["modelspec.merged_from"] == "tiny-sd, one.safetensors (0.7), two.safetensors (-0.4)"


def test_a_sum_of_loras_is_exact_and_one_minus_itself_is_zero(loras: tuple[Path, Path], tmp_path: Path) -> None:
    sources = [open_adapter(path) for path in loras]
    files = weighted((loras[0], 0.5), (loras[1], -2.0))
    found = written(combine(sources, files, None, nothing), sources[0], tmp_path / "sum.safetensors")
    one, two = (changes(source) for source in sources)
    assert_same(changes(found), {place: 0.5 * one[place] - 2.0 * two[place] for place in one})
    assert found.adapter is not None
    assert {layer.rank for layer in found.adapter.layers} == {7}
    assert {layer.alpha for layer in found.adapter.layers} == {7.0}  # diffusers ignores alphas that differ

    convert(open_source(loras[1]), tmp_path / "peft.safetensors", "peft", dtype=None, created=NOW)
    other_form = [sources[0], open_adapter(tmp_path / "peft.safetensors")]
    mixed = combine(other_form, files, None, nothing)
    assert_same(changes(written(mixed, sources[0], tmp_path / "mixed.safetensors")), changes(found))

    twice = weighted((loras[0], 1.0), (loras[0], -1.0))
    for choice in (None, RankChoice(4)):
        result = combine([sources[0]] * 2, twice, choice, nothing)
        zero = changes(written(result, sources[0], tmp_path / "zero.safetensors"))
        assert max(float(change.abs().max()) for change in zero.values()) < 1e-6

    small = combine(sources, files, RankChoice(7), nothing)
    assert_same(changes(written(small, sources[0], tmp_path / "small.safetensors")), changes(found))
    assert "Error of the weights: 0.00%" in small.sentences[0]


def test_a_resized_lora_is_the_original_at_full_rank_and_the_best_one_below(
    loras: tuple[Path, Path], tmp_path: Path
) -> None:
    source = open_adapter(loras[0])
    full = resize(source, FULL, nothing)
    assert_same(changes(written(full, source, tmp_path / "full.safetensors")), changes(source))
    small = resize(source, RankChoice(2, conv_rank=1), nothing)
    half = written(small, source, tmp_path / "half.safetensors")
    total = lost = 0.0
    for place, change in changes(source).items():
        left = change - changes(half)[place]
        sizes = torch.linalg.svdvals(change)
        kept = next(x.rank for x in half.adapter.layers if (x.part, x.path) == place)  # type: ignore[union-attr]
        assert float(left.norm()) == pytest.approx(float(sizes[kept:].norm()), rel=1e-4, abs=1e-6)
        total, lost = total + float(change.square().sum()), lost + float(left.square().sum())
    assert f"Error of the weights: {(lost / total) ** 0.5:.2%}" in small.sentences[0]
    by_energy = resize(source, RankChoice(energy=0.9), nothing)
    for place, change in changes(written(by_energy, source, tmp_path / "energy.safetensors")).items():
        assert float(change.square().sum()) >= 0.9 * float(changes(source)[place].square().sum()) - 1e-9


def test_a_lora_extracted_from_a_merged_model_is_that_lora(
    tiny_sd: Path, loras: tuple[Path, Path], tmp_path: Path
) -> None:
    merged = merge_into_model(open_source(tiny_sd), weighted((loras[0], 0.7)), dtype=None).source
    convert(merged, tmp_path / "m", "folder", dtype=None, created=NOW)
    base, tuned = open_source(tiny_sd), open_source(tmp_path / "m")
    found = written(
        extract_difference(base, tuned, RankChoice(4), nothing), open_adapter(loras[0]), tmp_path / "x.safetensors"
    )
    assert_same(changes(found), {place: 0.7 * c for place, c in changes(open_adapter(loras[0])).items()})
    only_unet = extract_difference(base, tuned, RankChoice(4), nothing, with_text_encoders=False)
    assert {layer.part for layer in only_unet.layers} == {"unet"}
    with pytest.raises(DarkroomError, match="have the same weights"):
        extract_difference(base, base, FULL, nothing)


def test_a_large_matrix_is_decomposed_like_a_small_one() -> None:
    filled = Filled(4)
    for shape in ((300, 400), (400, 300), (260, 40, 3, 3)):
        product = LowRank(filled(shape[0], 5), filled(5, int(torch.tensor(shape[1:]).prod())), shape)
        change = (product.up @ product.down).reshape(shape)
        for rank in (5, 3):
            by_matrix, by_factors = reduce_matrix(change, RankChoice(rank)), reduce_product(product, RankChoice(rank))
            one, other = (r.change.up @ r.change.down for r in (by_matrix, by_factors))
            assert torch.allclose(one, other, atol=1e-6)
            assert by_matrix.lost == pytest.approx(by_factors.lost, abs=1e-6)


def test_strengths_of_blocks(loras: tuple[Path, Path], tmp_path: Path) -> None:
    source = open_adapter(loras[0])
    whole = changes(source)
    result = scale_blocks(source, "down=0.5, mid=2, text=0, IN01=0.25, *attn1.to_q=3")
    found = changes(written(result, source, tmp_path / "b.safetensors"))
    for place, change in whole.items():
        part, path = place
        if part == "text_encoder":
            assert place not in found
            continue
        strength = 2.0 if path.startswith("mid_block") else 1.0
        if path.startswith(("down_blocks", "conv_in")):
            strength = 0.25 if path.startswith(("down_blocks.0.resnets.0", "down_blocks.0.attentions.0")) else 0.5
        strength = 3.0 if path.endswith("attn1.to_q") else strength
        assert torch.allclose(found[place], strength * change, atol=1e-6), place
    every = scale_blocks(source, "only the UNet")
    assert {layer.part for layer in every.layers} == {"unet"}
    for text, reason in (
        ("1,1,1,1,1,1", "6 strengths are given"),
        ("IN77=1", "No layer of this model belongs to 'IN77'"),
        ("down=much", "'much' in 'down=much' is not a number"),
        ("0", "nothing of one.safetensors is left"),
        ("", "No strengths"),
    ):
        with pytest.raises(DarkroomError, match=reason):
            scale_blocks(source, text)


def test_a_list_of_strengths_has_the_order_that_users_know() -> None:
    from modules.adapters.tools.blocks import block_of, blocks_in, parse_strengths

    record = published_model("sd1")
    targets = record.adapter_targets(record.shipped_configs()).all
    assert sorted(blocks_in(targets)) == [17, 26]
    strengths = parse_strengths(",".join(map(str, range(17))), targets)
    names = ("BASE", "IN01", "IN02", "IN04", "IN05", "IN07", "IN08", "M00", *(f"OUT{n:02d}" for n in range(3, 12)))
    assert blocks_in(targets)[17] == names
    for target in targets:
        block = block_of(target)
        assert strengths.of(target) == (names.index(block) if block in names else 0.0)
    sdxl = published_model("sdxl")
    assert sorted(blocks_in(sdxl.adapter_targets(sdxl.shipped_configs()).all)) == [12, 20]


def other_kinds(tiny_sd: Path, path: Path, kind: str) -> Path:
    """Write a file with a LoHa, a whole difference, or a DoRA on one layer of a tiny model."""
    family, filled = load_tiny(tiny_sd), Filled(9)
    place = ("unet", "mid_block.attentions.0.transformer_blocks.0.attn1.to_q")
    name, size = family.lora_naming.kohya_name(*place), family.parts["unet"].module.get_submodule(place[1]).weight.shape
    low = {"lora_down.weight": filled(2, size[1]), "lora_up.weight": filled(size[0], 2)}
    factors = {
        "loha": {
            f"hada_{w}_{x}": filled(*((size[0], 2) if x == "a" else (2, size[1]))) for w in ("w1", "w2") for x in "ab"
        },
        "diff": {"diff": filled(*size), "diff_b": filled(size[0])},
        "dora": low | {"dora_scale": filled(size[0], 1).abs()},
    }[kind]
    metadata = {CONFIGS_KEY: family.lora_naming.own_configs, "modelspec.architecture": "stable-diffusion-v1/lora"}
    save_file({f"{name}.{factor}": tensor.contiguous() for factor, tensor in factors.items()}, path, metadata)
    return path


def test_other_kinds_of_adapters_are_exact_or_refused_by_name(
    tiny_sd: Path, loras: tuple[Path, Path], tmp_path: Path
) -> None:
    loha, dora = (other_kinds(tiny_sd, tmp_path / f"{kind}.safetensors", kind) for kind in ("loha", "dora"))
    source, one = open_adapter(loha), open_adapter(loras[0])
    small = written(resize(source, FULL, nothing), source, tmp_path / "lora.safetensors")
    [(place, change)] = changes(small).items()
    assert source.adapter is not None
    f = {name.removeprefix("hada_"): tensor for name, tensor in source.adapter.layers[0].factors.items()}
    assert torch.allclose(change.float(), (f["w1_a"] @ f["w1_b"]) * (f["w2_a"] @ f["w2_b"]), atol=1e-6)
    files = weighted((loras[0], 1.0), (loha, 2.0))
    with pytest.raises(DarkroomError, match="no exact LoRA"):
        combine([one, source], files, None, nothing)
    both = changes(written(combine([one, source], files, FULL, nothing), one, tmp_path / "both.safetensors"))
    assert torch.allclose(both[place], changes(one)[place] + 2 * change, atol=1e-5)
    half = scale_blocks(source, "0.5").layers[0].factors
    assert torch.equal(half["hada_w1_a"], source.adapter.layers[0].factors["hada_w1_a"] * 0.5)
    tools: tuple[Callable[[], object], ...] = (
        lambda: resize(open_adapter(dora), RankChoice(1), nothing),
        lambda: combine([open_adapter(dora)], weighted((dora, 1.0)), None, nothing),
        lambda: scale_blocks(open_adapter(dora), "0.5"),
    )
    for tool in tools:
        with pytest.raises(DarkroomError, match=r"DoRA \(LoRA\), whose change depends on the weights") as refused:
            tool()
        assert "Merge the file into the model" in refused.value.advice
    model = merge_into_model(
        open_source(tiny_sd), weighted((dora, 1.0)), dtype=None
    ).source  # exact where it has a model
    convert(model, tmp_path / "m", "folder", dtype=None, created=NOW)
    own, other = predictions(tmp_path / "m")[1], predictions(tiny_sd, weighted((dora, 1.0)))[1]
    assert torch.allclose(own, other, atol=1e-5)


def test_differences_of_weights_and_biases_are_merged_and_summed(tiny_sd: Path, tmp_path: Path) -> None:
    path = other_kinds(tiny_sd, tmp_path / "diff.safetensors", "diff")
    source = open_adapter(path)
    total = combine([source, source], weighted((path, 1.0), (path, 0.5)), FULL, nothing)
    assert source.adapter is not None
    assert torch.allclose(total.layers[0].factors["diff_b"], 1.5 * source.adapter.layers[0].factors["diff_b"])
    with pytest.raises(DarkroomError, match=r"changes the bias of unet.*to_q, which this model does not have"):
        merge_into_model(open_source(tiny_sd), weighted((path, 1.0)), dtype=None)


def test_the_files_of_a_tool_say_what_was_done_and_other_programs_read_them(
    tiny_sd: Path, loras: tuple[Path, Path], tmp_path: Path
) -> None:
    source = open_adapter(loras[0])
    metadata = {**(source.metadata or {}), **tool_metadata("resize", [{"file": "one.safetensors"}], rank=2)}
    out = tmp_path / "out.safetensors"
    write_result(
        resize(source, RankChoice(2), nothing), source, out, metadata=metadata, dtype=torch.float16, created=NOW
    )
    again = open_adapter(out)
    assert {tensor.dtype for tensor in load_file(out).values()} == {torch.float16}
    assert json.loads((again.metadata or {})[TOOL_KEY]) == {
        "tool": "resize", "inputs": [{"file": "one.safetensors"}], "rank": 2,
    }  # fmt: skip
    assert (again.metadata or {})["ss_network_dim"] == "2"
    read = read_adapter_file(out, load_tiny(tiny_sd).lora_naming.targets)
    assert isinstance(read, AdapterFile)
    assert not read.unplaced


def test_files_for_other_models_are_refused(
    tiny_sd: Path, tiny_sdxl: Path, loras: tuple[Path, Path], tmp_path: Path
) -> None:
    with pytest.raises(DarkroomError, match="cannot be used"):
        open_adapter(tiny_sd)
    with pytest.raises(DarkroomError, match="is not an adapter file"):
        merge_into_model(open_source(tiny_sd), weighted((tiny_sdxl, 1.0)), dtype=None)
    with pytest.raises(DarkroomError, match="does not fit this model"):
        merge_into_model(open_source(tiny_sdxl), weighted((loras[0], 1.0)), dtype=None)
    with pytest.raises(DarkroomError, match="models are of different kinds"):
        extract_difference(open_source(tiny_sd), open_source(tiny_sdxl), FULL, nothing)


def test_a_stack_is_replaced_and_taken_off_without_a_trace(tiny_sd: Path, loras: tuple[Path, Path]) -> None:
    family = load_tiny(tiny_sd)
    modules = {n: p.module for n, p in family.parts.items()}
    stack = AdapterStack(modules, family.lora_naming)
    before = {name: list(module.state_dict()) for name, module in modules.items()}
    hooks = sum(len(m._forward_hooks) for module in modules.values() for m in module.modules())
    stack.put(weighted((loras[0], 1.0), (loras[1], 1.0)))
    assert sum(len(m._forward_hooks) for module in modules.values() for m in module.modules()) > hooks
    with pytest.raises(DarkroomError):
        stack.put(weighted((tiny_sd, 1.0)))
    assert stack.files == ()
    assert before == {name: list(module.state_dict()) for name, module in modules.items()}
    assert sum(len(m._forward_hooks) for module in modules.values() for m in module.modules()) == hooks
