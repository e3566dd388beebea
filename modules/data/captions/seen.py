"""Captions as a text encoder reads them: alone, or together with the reference images of their image."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from modules.data.cache.build import LoadableImage
    from modules.data.versions import ImageVersion


@dataclass(frozen=True, slots=True)
class SeenCaption:
    """A caption with the reference images that the text encoder sees. It is known by its text and their `keys`."""

    text: str
    keys: tuple[str, ...]
    images: tuple[LoadableImage, ...] = field(compare=False)


ReadCaption = str | SeenCaption
"""A caption as it is encoded: its text, or with the images that are read together with it."""
CaptionReader = Callable[[str, "ImageVersion"], ReadCaption]
"""Returns how the caption of a version of an image is encoded."""


def read_alone(caption: str, version: ImageVersion) -> ReadCaption:
    """Return a caption that is encoded without images."""
    return caption


def text_of(caption: ReadCaption) -> str:
    """Return the text of a caption."""
    return caption if isinstance(caption, str) else caption.text
