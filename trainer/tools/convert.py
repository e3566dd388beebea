"""Converting a model or a LoRA to another format or dtype."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from modules.families.kinds.identify import identify
from modules.families.kinds.record import Form
from modules.families.kinds.unrecognised import BROKEN
from modules.system.errors import DarkroomError
from trainer.job_events import JobFinished
from trainer.tools.destinations import require_free
from trainer.tools.job import Job

MB = 1_000_000


def convert_file(
    job: Job,
    source: Path,
    out: Path,
    *,
    to: Form | None = None,
    dtype: str | None = None,
    use_ema: bool = False,
    to_inpainting: bool = False,
    overwrite: bool = False,
) -> JobFinished:
    """Convert a file or folder; see the verb `convert` for the options. Raises DarkroomError where it cannot be."""
    require_free([source], out, overwrite=overwrite)
    kind = identify(source)
    if kind.kind == BROKEN.name:  # reported before torch is loaded
        raise DarkroomError(kind.sentence)
    from modules.families.kinds.conversion import conversion_notes, convert, open_source, target_form
    from modules.families.kinds.inpainting_conversion import as_inpainting
    from modules.system.devices import dtype_of

    form = target_form(kind, out, to)
    if form == "single":
        require_free([source], out.with_suffix(".yaml"), overwrite=overwrite)
    opened = open_source(source, use_ema=use_ema)
    notes = [kind.sentence]
    if to_inpainting:
        opened = as_inpainting(opened)
        notes.append("It is an inpainting model now, which predicts the same as before until it is trained as one.")
    job.note((*notes, *conversion_notes(opened, form)))
    written = convert(
        opened,
        out,
        form,
        dtype=dtype_of(dtype) if dtype else None,
        created=datetime.now().astimezone(),
        on_written=lambda done, total: job.progress("writing (MB)", done // MB, -(-total // MB)),
    )
    return JobFinished(f"Converted {source.name}.", tuple(map(str, written)))
