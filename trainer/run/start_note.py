"""The log message about the adapter file that a run starts from."""

from __future__ import annotations

from modules.adapters.kept_files import copies_in, lost_in
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
    copies = copies_in(start, model.family.lora_naming)
    others = OtherLayers(
        start.where,
        is_kept=not (start.left_out or start.left_out_others),
        trains_any=any(start.trained.values()),
        paths=paths,
        inactive=tuple(f"{layer.part}.{layer.path}" for layer in start.inactive),
        others=tuple(name for name in (*start.others, *start.left_out_others) if name not in copies),
        lost=tuple(name for name in lost_in(start, form) if name not in copies),
        copies=tuple(copies),
    )
    message, advice = others.note()
    if start.num_folded:
        folded = (
            f"{count(start.num_folded, 'layer')} of {start.where} are Tucker decompositions. They are trained as plain "
            "LoRA, with the same product."
        )
        message = f"{message} {folded}".strip()
    return message, advice
