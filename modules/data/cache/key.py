"""Cache keys: a hash over everything that determines an entry's content, and nothing else.

Changing one ingredient changes the keys of exactly the entries that depend on it; any other change affects none.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator

from modules.data.buckets import LatentFactor, Size
from modules.data.captions.seen import ReadCaption
from modules.data.tiles import VAE_TILES
from modules.data.transforms.apply import AUGMENTATION, RESAMPLER, UPSAMPLER
from modules.data.transforms.geometry import Geometry
from modules.data.transforms.recipe import Colour, Recipe

CACHE_FORMAT = 1
MASKS = "pillow-bilinear-1"  # increased when the same mask file would give another mask
MASKED_IMAGES = "gray-half-1"  # increased when the masked area is removed in another way
DRAWN_MASKS = "strokes-rectangles-1"  # increased when a seed would give another mask


def image_key(*, digest: str, width_px: int, height_px: int, recipe: Recipe, encoder: str) -> str:
    """Return the key of an image's latents. `encoder` identifies the VAE's weights, dtype and TF32.

    All of the recipe that affects the image is in it, and no setting that it was drawn from.
    """
    return keys_of_size(width_px=width_px, height_px=height_px, recipe=recipe, encoder=encoder)(digest).hex()


def keys_of_size(*, width_px: int, height_px: int, recipe: Recipe, encoder: str) -> Callable[[str], bytes]:
    """Return the function from the digests of images to the bytes of their keys (`image_key`).

    For many images of one size and recipe it takes a fraction of the time: all but the digest is written once.
    """
    ingredients = {
        "digest": _DIGEST,
        "encoder": encoder,
        "background": recipe.background,
        **_of_geometry(recipe.geometry, width_px, height_px),
        **_of_tiles(recipe.geometry.resize_crop.bucket),
        **_of_colour(recipe.colour),
    }
    return _keys_of(_text("latents", ingredients), _DIGEST)


def mask_key(
    *, digest: str, width_px: int, height_px: int, is_alpha: bool, recipe: Recipe, latent_factor: LatentFactor
) -> str:
    """Return the key of an image's mask at the size of its latents. `digest` is the digest of the file with the mask.

    The width and height are the image's, to which a mask of another size is stretched.
    """
    ingredients = {
        "digest": digest,
        "is_alpha": is_alpha,
        "circle": recipe.mask_circle,
        "latent_factor": latent_factor if isinstance(latent_factor, int) else str(latent_factor),
        "version": MASKS,
        **_of_geometry(recipe.geometry, width_px, height_px),
    }
    return _hash("mask", ingredients)


def conditioning_image_key(
    *, digest: str, width_px: int, height_px: int, recipe: Recipe, encoder: str, follows_colour: bool = False
) -> str:
    """Return the key of the latents of a custom conditioning image. `digest` is the digest of its file.

    The width and height belong to the image it is for, to whose size it is resized. Its colours are augmented only if
    it `follows_colour`.
    """
    geometry = _of_geometry(recipe.geometry, width_px, height_px)
    tiles = _of_tiles(recipe.geometry.resize_crop.bucket)
    colour = _of_colour(recipe.colour) if follows_colour else {}
    return _hash("conditioning image", {"digest": digest, "encoder": encoder, **geometry, **tiles, **colour})


def masked_image_key(*, image: str, mask: str) -> str:
    """Return the key of the latents of an image without its masked area; `image` and `mask` are the keys of both."""
    return _hash("masked image", {"image": image, "mask": mask, "version": MASKED_IMAGES})


def drawn_mask_key(*, seed: int, bucket: Size) -> str:
    """Return the key of a random inpainting mask. None is stored: it is part of other keys."""
    return _hash("drawn mask", {"seed": seed, "bucket": list(bucket.sides_px), "version": DRAWN_MASKS})


def blank_image_key(*, bucket: Size, encoder: str) -> str:
    """Return the key of the latents of a conditioning image that is masked everywhere."""
    ingredients = {"bucket": list(bucket.sides_px), "encoder": encoder, "version": MASKED_IMAGES}
    return _hash("blank image", ingredients | _of_frames(bucket) | _of_tiles(bucket))


def _of_colour(colour: Colour) -> dict[str, object]:
    """Return how the colours of an image are changed; nothing if they are not."""
    if colour.is_plain:
        return {}
    return {
        "colour": [AUGMENTATION, colour.brightness, colour.contrast, colour.saturation, colour.hue_degrees],
    }


def _of_tiles(bucket: Size) -> dict[str, object]:
    """Return the tiles that the VAE encodes an image of a size in; nothing for one that it encodes as a whole."""
    is_tiled = VAE_TILES.applies(bucket.width_px, bucket.height_px)
    return {"tiles": VAE_TILES.identity} if is_tiled else {}


def _of_frames(bucket: Size) -> dict[str, object]:
    """Return the frames of a clip; nothing for an image."""
    return {"frames": bucket.num_frames} if bucket.num_frames > 1 else {}


def _of_geometry(geometry: Geometry, width_px: int, height_px: int) -> dict[str, object]:
    fit, size = geometry.resize_crop, Size(width_px, height_px)
    source = size if geometry.cut is None else geometry.cut.size
    is_larger = fit.scaled.width_px > source.width_px or fit.scaled.height_px > source.height_px
    ingredients: dict[str, object] = {
        "size": [width_px, height_px],
        "scaled": [fit.scaled.width_px, fit.scaled.height_px],
        "crop": [fit.crop_left_px, fit.crop_top_px],
        "bucket": list(fit.bucket.sides_px),
        "resampler": UPSAMPLER if is_larger else RESAMPLER,
        **_of_frames(fit.bucket),
    }
    if not geometry.is_plain:
        cut = list(geometry.cut.corners) if geometry.cut else []
        ingredients["geometry"] = [AUGMENTATION, geometry.degrees, geometry.is_flipped, cut]
    return ingredients


def caption_key(*, caption: ReadCaption, encoder: str) -> str:
    """Return the key of a caption's text embeddings. `encoder` identifies weights, dtypes, tokenizer and clip skip."""
    return next(caption_keys([caption], encoder=encoder)).hex()


def caption_keys(captions: Iterable[ReadCaption], *, encoder: str) -> Iterator[bytes]:
    """Yield the bytes of the keys of captions (`caption_key`), for many of them in a fraction of the time."""
    key_of = _keys_of(_text("text", {"caption": _DIGEST, "encoder": encoder}), _DIGEST)
    for caption in captions:
        if isinstance(caption, str):
            yield key_of(json.dumps(caption)[1:-1])
        else:
            images = list(caption.keys)
            yield bytes.fromhex(
                _hash("text with images", {"caption": caption.text, "images": images, "encoder": encoder})
            )


_DIGEST = "the digest"  # in the text of keys, in place of what differs between them


def _keys_of(text: str, place: str) -> Callable[[str], bytes]:
    """Return the function from what stands in a text in place of `place` to the hash of the text, 20 bytes."""
    before, _, after = text.partition(f'"{place}"')
    start, end = hashlib.blake2b(f'{before}"'.encode(), digest_size=20), f'"{after}'.encode()

    def key_of(given: str) -> bytes:
        digest = start.copy()
        digest.update(given.encode() + end)
        return digest.digest()

    return key_of


def _hash(kind: str, ingredients: dict[str, object]) -> str:
    return hashlib.blake2b(_text(kind, ingredients).encode(), digest_size=20).hexdigest()


def _text(kind: str, ingredients: dict[str, object]) -> str:
    return json.dumps([CACHE_FORMAT, kind, ingredients], sort_keys=True, ensure_ascii=True)
