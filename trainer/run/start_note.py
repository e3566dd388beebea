"""The log message about the adapter file that a run starts from."""

from __future__ import annotations

from modules.adapters.kept_files import lost_in
from modules.adapters.spec import FileForm
from modules.adapters.start_notes import OtherLayers
from modules.system.problem import count
from trainer.run.model import LoadedModel


def note_of_start(model: LoadedModel, form: FileForm) -> tuple[str, str]:
    """Return a message about what the run does not train of the file, and an advice; empty where there is nothing."""
    start = model.start
    if start is None:
        return "", ""
    paths: dict[str, tuple[str, ...]] = {}
    for layer in (*start.kept, *start.left_out):
        label = model.family.parts[layer.part].spec.label
        paths[label] = (*paths.get(label, ()), layer.path.removeprefix("text_model."))  # as preflight names it
    others = OtherLayers(
        start.where,
        is_kept=not (start.left_out or start.left_out_others),
        trains_any=any(start.trained.values()),
        paths=paths,
        inactive=tuple(f"{layer.part}.{layer.path}" for layer in start.inactive),
        others=(*start.others, *start.left_out_others),
        lost=tuple(lost_in(start, form)),
    )
    message, advice = others.note()
    if start.num_folded:
        folded = (
            f"{count(start.num_folded, 'layer')} of {start.where} are Tucker decompositions. They are trained as plain "
            "LoRA, with the same product."
        )
        message = f"{message} {folded}".strip()
    return message, advice
