"""Resizing a LoRA by SVD: fewer ranks, with the least change of what it does.

Other changes become LoRA layers, too. The strength of each layer stays what it was.
"""

from __future__ import annotations

from modules.adapters.start import changes_weight
from modules.adapters.tools.combine import whole_change
from modules.adapters.tools.low_rank import RankChoice, Reduced, low_rank_of, reduced_matrix, reduced_product
from modules.adapters.tools.opening import content_of, require_linear
from modules.adapters.tools.results import LoraResult, Losses, OnLayer
from modules.families.kinds.source import Source
from modules.families.registry import published
from modules.formats.adapter_layers import AdapterLayer
from modules.formats.adapter_names import DOWN
from modules.formats.adapter_types import BIASES
from modules.system.errors import DarkroomError


def resized(source: Source, choice: RankChoice, on_layer: OnLayer) -> LoraResult:
    """Return an opened adapter file with the ranks of a choice. Norms, biases and embeddings stay as they are.

    Raises DarkroomError where the change of a layer depends on the model's weights.
    """
    content, where = content_of(source), source.path.name
    require_linear(where, content.layers, "resized")
    places = {(t.part, t.path): t for t in published(source.kind.model).adapter_targets(source.configs).all}
    layers: list[AdapterLayer] = []
    reduced: dict[str, Reduced] = {}
    for done, layer in enumerate(content.layers):
        on_layer(done, len(content.layers))
        is_product = DOWN in layer.factors
        if not is_product and (not changes_weight(layer) or whole_change(layer, places, where=where).ndim == 1):
            layers.append(layer)
            continue
        try:
            found = (
                reduced_product(low_rank_of(layer), choice)
                if is_product
                else reduced_matrix(whole_change(layer, places, where=where), choice)
            )
        except (RuntimeError, IndexError) as error:
            raise DarkroomError(
                f"{where} is damaged: the matrices of {layer.part}.{layer.path} do not fit each other.",
                advice="Download it again.",
            ) from error
        reduced[f"{layer.part}.{layer.path}"] = found
        small = found.change.as_layer(layer.part, layer.path)
        biases = {name: factor for name, factor in layer.factors.items() if name in BIASES}
        layers.append(AdapterLayer(small.part, small.path, {**small.factors, **biases}, small.alpha))
    on_layer(len(content.layers), len(content.layers))
    if not reduced:
        raise DarkroomError(f"{where} has no layers with ranks to resize.", advice="Choose a LoRA file.")
    return LoraResult(tuple(layers), content.extra_tensors, (Losses.of(reduced).sentence,))
