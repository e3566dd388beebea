"""A thumbnail for the metadata of a run's result, made from its newest sample."""

from __future__ import annotations

import base64
import io
from pathlib import Path

from modules.data.images import open_image

_SIDE_PX = 256


def thumbnail_of(samples: Path) -> str:
    """Return the newest sample of the first prompt in a run's samples folder as a data URL of a JPEG, at most 256 px a
    side (ModelSpec 1.0.1, `modelspec.thumbnail`); empty if there is no sample, or if it cannot be read.
    """
    prompts = sorted(f for f in samples.glob("*") if f.is_dir())
    sampled = sorted(f for folder in prompts[:1] for f in folder.glob("step-*") if not f.name.startswith("."))
    if not sampled:
        return ""
    try:
        with open_image(sampled[-1]) as image:
            small = image.convert("RGB")
    except OSError:
        return ""
    small.thumbnail((_SIDE_PX, _SIDE_PX))
    buffer = io.BytesIO()
    small.save(buffer, format="JPEG", quality=85)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"
