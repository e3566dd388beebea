"""Merging and subtracting adapters: one LoRA that changes a model by the weighted sum of several.

The sum of low-rank products is the product of their concatenated matrices, which is exact: `s1 B1 A1 + s2 B2 A2 =
[s1 B1, s2 B2] [A1; A2]`. Its rank is the sum of the ranks; it can be reduced by SVD.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from modules.adapters.changes import bias_change, weight_change
from modules.adapters.start import changes_weight
from modules.adapters.tools import low_rank
from modules.adapters.tools.opening import WeightedFile, content_of, left_over_notes, require_linear
from modules.adapters.tools.results import LoraResult, Losses, OnLayer
from modules.families.kinds.conversion import Source
from modules.families.registry import published_model
from modules.formats.adapter_layers import AdapterLayer
from modules.formats.adapter_names import DOWN
from modules.formats.adapter_targets import AdapterTarget
from modules.formats.adapter_types import BIASES
from modules.system.errors import DarkroomError
from modules.system.problem import count

Place = tuple[str, str]


@dataclass(frozen=True, eq=False)
class _Sum:
    """The terms of the sum at a layer: products, whole changes of its weight, and changes of its bias, all weighted."""

    products: list[low_rank.LowRank] = field(default_factory=list)
    wholes: list[torch.Tensor] = field(default_factory=list)
    biases: list[torch.Tensor] = field(default_factory=list)


def combine(
    sources: Sequence[Source], files: Sequence[WeightedFile], choice: low_rank.RankChoice | None, on_layer: OnLayer
) -> LoraResult:
    """Return the weighted sum of opened adapter files; with a choice of rank reduced by SVD, otherwise exact.

    Raises DarkroomError for files of different models, for a layer whose change depends on the model's weights, and
    without a choice of rank for one whose change has no small product.
    """
    _require_one_model(sources, files)
    targets = published_model(sources[0].kind.model).adapter_targets(sources[0].configs).all
    places = {(target.part, target.path): target for target in targets}
    sums: dict[Place, _Sum] = {}
    notes: list[str] = []
    for source, file in zip(sources, files, strict=True):
        content = content_of(source)
        require_linear(file.path.name, content.layers, "combined with others")
        notes += left_over_notes(file.path.name, content)
        for layer in content.layers:
            _add(sums.setdefault((layer.part, layer.path), _Sum()), layer, file, places, is_exact=choice is None)
    layers: list[AdapterLayer] = []
    reduced: dict[str, low_rank.Reduction] = {}
    for done, ((part, path), total) in enumerate(sums.items()):
        on_layer(done, len(sums))
        layers += _layers_of(part, path, total, choice, reduced)
    on_layer(len(sums), len(sums))
    ranks = [layer.rank for layer in layers if DOWN in layer.factors]
    exact = f"{count(len(ranks), 'layer')} of rank {max(ranks, default=0)}: the exact sum."
    return LoraResult(tuple(layers), {}, (Losses.of(reduced).sentence or exact, *notes))


def _require_one_model(sources: Sequence[Source], files: Sequence[WeightedFile]) -> None:
    for source, file in zip(sources, files, strict=True):
        if source.kind.family != sources[0].kind.family:
            raise DarkroomError(
                f"{file.path.name} is for {source.kind.model}, {files[0].path.name} for {sources[0].kind.model}.",
                advice="Choose files for the same model.",
            )


def _add(
    total: _Sum, layer: AdapterLayer, file: WeightedFile, places: Mapping[Place, AdapterTarget], *, is_exact: bool
) -> None:
    bias = bias_change(layer.factors)
    if bias is not None:
        total.biases.append(bias.double() * file.strength)
    if not changes_weight(layer):
        return
    if DOWN in layer.factors:
        product = low_rank.low_rank_of(layer)
        total.products.append(low_rank.LowRank(product.up * file.strength, product.down, product.shape))
        return
    change = whole_change(layer, places, where=file.path.name)
    if is_exact and change.ndim > 1:
        raise DarkroomError(
            f"{file.path.name} changes {layer.part}.{layer.path} by more than a low-rank product, so the sum has no "
            "exact LoRA.",
            advice="Choose a rank: the sum is then reduced to it by SVD.",
        )
    total.wholes.append(change.double() * file.strength)


def whole_change(layer: AdapterLayer, places: Mapping[Place, AdapterTarget], *, where: str) -> torch.Tensor:
    """Return the change of a weight by a layer of the file named `where`, which does not depend on it, in float32.

    Raises DarkroomError if its factors do not fit the model.
    """
    target = places.get((layer.part, layer.path))
    difference = next((f for n, f in sorted(layer.factors.items()) if n in ("diff", "w_norm")), None)
    shape = tuple(difference.shape) if difference is not None else target.weight if target is not None else ()
    try:
        change = weight_change(layer.factors, layer.alpha, torch.empty(shape))
    except (RuntimeError, IndexError):
        change = None
    if change is None:
        raise DarkroomError(
            f"The factors of {layer.part}.{layer.path} in {where} do not fit the model.", advice="Choose another file."
        )
    return change


def _layers_of(
    part: str, path: str, total: _Sum, choice: low_rank.RankChoice | None, reduced: dict[str, low_rank.Reduction]
) -> list[AdapterLayer]:
    """Return the layer of a file for a sum: a LoRA, or a norm's difference, and the difference of a bias."""
    factors: dict[str, torch.Tensor] = {}
    alpha: float | None = None
    is_norm = bool(total.wholes) and total.wholes[0].ndim == 1
    if is_norm:
        factors["w_norm"] = torch.stack(total.wholes).sum(0).float()
    elif total.products or total.wholes:
        product = _reduce_sum(part, path, total, choice, reduced).as_layer(part, path)
        factors |= product.factors
        alpha = product.alpha
    if total.biases:
        name = "b_norm" if is_norm else "diff_b"
        factors[name] = torch.stack(total.biases).sum(0).float()
    assert {"diff_b", "b_norm"} == BIASES
    return [AdapterLayer(part, path, factors, alpha)]


def _reduce_sum(
    part: str, path: str, total: _Sum, choice: low_rank.RankChoice | None, reduced: dict[str, low_rank.Reduction]
) -> low_rank.LowRank:
    try:
        if not total.wholes:
            widest = max((p.shape for p in total.products), key=len)
            product = low_rank.LowRank(
                torch.cat([p.up for p in total.products], 1), torch.cat([p.down for p in total.products]), widest
            )
            if choice is None:
                return product
            reduction = low_rank.reduce_product(product, choice)
        else:
            shape = max((w.shape for w in total.wholes), key=len)
            change = torch.stack([w.reshape(shape) for w in total.wholes]).sum(0)
            for p in total.products:
                change += (p.up @ p.down).reshape(shape)
            reduction = low_rank.reduce_matrix(change, choice or low_rank.RankChoice())
    except RuntimeError as error:
        raise DarkroomError(
            f"The files change {part}.{path} in different sizes, so they are for different models.",
            advice="Choose files for the same model.",
        ) from error
    reduced[f"{part}.{path}"] = reduction
    return reduction.change


def resize(source: Source, choice: low_rank.RankChoice, on_layer: OnLayer) -> LoraResult:
    """Return an opened adapter file with the ranks of a choice. Norms, biases and embeddings stay as they are.

    Raises DarkroomError if the change of a layer depends on the model's weights.
    """
    content, where = content_of(source), source.path.name
    require_linear(where, content.layers, "resized")
    places = {(t.part, t.path): t for t in published_model(source.kind.model).adapter_targets(source.configs).all}
    layers: list[AdapterLayer] = []
    reduced: dict[str, low_rank.Reduction] = {}
    for done, layer in enumerate(content.layers):
        on_layer(done, len(content.layers))
        is_product = DOWN in layer.factors
        if not is_product and (not changes_weight(layer) or whole_change(layer, places, where=where).ndim == 1):
            layers.append(layer)
            continue
        try:
            reduction = (
                low_rank.reduce_product(low_rank.low_rank_of(layer), choice)
                if is_product
                else low_rank.reduce_matrix(whole_change(layer, places, where=where), choice)
            )
        except (RuntimeError, IndexError) as error:
            raise DarkroomError(
                f"{where} is damaged: the matrices of {layer.part}.{layer.path} do not fit each other.",
                advice="Download it again.",
            ) from error
        reduced[f"{layer.part}.{layer.path}"] = reduction
        small = reduction.change.as_layer(layer.part, layer.path)
        biases = {name: factor for name, factor in layer.factors.items() if name in BIASES}
        layers.append(AdapterLayer(small.part, small.path, {**small.factors, **biases}, small.alpha))
    on_layer(len(content.layers), len(content.layers))
    if not reduced:
        raise DarkroomError(f"{where} has no layers with ranks to resize.", advice="Choose a LoRA file.")
    return LoraResult(tuple(layers), content.extra_tensors, (Losses.of(reduced).sentence,))
