"""Sizes, captions and caches."""

from typing import Annotated, ClassVar, Literal

from annotated_types import Interval, MinLen

from modules.families.registry import families_with
from modules.settings.conditions import READS_REFERENCES, USES_DENOISER
from modules.settings.field import Section, Setting, When, advanced_setting
from modules.settings.shared_types import Fraction, Resolution


class Data(Section):
    """Sizes, captions and caches, for all concepts."""

    group: ClassVar[str] = "Size"

    resolution_px: Annotated[
        tuple[Resolution, ...],
        MinLen(1),
        Setting(
            "Resolution",
            "The side of a square image at the training size; other aspect ratios get the same area. A size such as "
            "1024x768 is one size for all images. Several, such as 512, 768, train each image at each of them in turn.",
            unit="px",
        ),
    ] = (512,)
    fixed_width_px: Annotated[
        int,
        *Interval(ge=0, le=8192),
        advanced_setting(
            "Fixed width",
            "Together with a fixed height: one size for all images, whatever their aspect ratio; 0 for none.",
            unit="px",
        ),
    ] = 0
    fixed_height_px: Annotated[
        int,
        *Interval(ge=0, le=8192),
        advanced_setting(
            "Fixed height",
            "Together with a fixed width: one size for all images, whatever their aspect ratio; 0 for none.",
            unit="px",
        ),
    ] = 0
    aspect_ratio_bucketing: Annotated[
        bool,
        Setting(
            "Aspect ratio bucketing",
            "Groups images of similar aspect ratio, so that little is cropped. Off: images are cropped to a square.",
        ),
    ] = True
    bucket_step_px: Annotated[
        int,
        *Interval(ge=8, le=256),
        advanced_setting(
            "Bucket step",
            "Bucket widths and heights are multiples of this.",
            unit="px",
            applies_when=When("aspect_ratio_bucketing", (True,)),
        ),
    ] = 64
    bucket_aspect_ratios: Annotated[
        Literal["free", "fixed"],
        advanced_setting(
            "Bucket aspect ratios",
            "Free: all sizes that are multiples of the bucket step, of at most the resolution's area. Fixed: 1, 1.25, "
            "1.5, 1.75, 2, 2.5, 3, 3.5, 4 and their inverses, as in OneTrainer: fewer sizes, fuller batches.",
            choice_labels={"free": "Free", "fixed": "Fixed (17)"},
            applies_when=When("aspect_ratio_bucketing", (True,)),
        ),
    ] = "free"
    max_aspect_ratio: Annotated[
        float,
        *Interval(ge=1, le=8),
        advanced_setting(
            "Max aspect ratio",
            "The longer side may be at most this many times the shorter one; other images are cropped to it.",
            unit="times",
            applies_when=When("aspect_ratio_bucketing", (True,)),
        ),
    ] = 2.0
    never_upscale: Annotated[
        bool,
        advanced_setting(
            "Never upscale",
            "Trains images that are smaller than their bucket at a smaller size of the same shape, also where rotation "
            "or the mask crop needs more of the image.",
        ),
    ] = False
    reference_size: Annotated[
        Literal["image", "pipeline"],
        advanced_setting(
            "Reference size",
            "Like the image: a reference image of the aspect ratio of its image is resized, cropped and rotated with "
            "it; another one keeps its aspect ratio, at as many pixels. As in the pipeline: each keeps its "
            "aspect ratio and has the size that other programs give it in samples, usually up to a million pixels, "
            "which needs more memory at small resolutions.",
            choice_labels={"image": "Like the image", "pipeline": "As in the pipeline"},
            applies_when=READS_REFERENCES,
        ),
    ] = "image"
    min_side_px: Annotated[
        int,
        *Interval(ge=0, le=8192),
        advanced_setting(
            "Minimum size",
            "Leaves out images whose shorter side is below this; the check lists them. 0 keeps all.",
            unit="px",
        ),
    ] = 0
    partial_batches: Annotated[
        Literal["keep", "merge", "drop"],
        advanced_setting(
            "Partial batches",
            "The rest of a bucket that does not fill a batch. Keep: a smaller batch. Merge: it is trained in the next "
            "epoch, first in its bucket; after the last epoch a rest may remain. Drop: it is left out of that epoch, "
            "and the log names the images.",
            choice_labels={"keep": "Keep", "merge": "Merge across epochs", "drop": "Drop"},
        ),
    ] = "keep"
    caption_dropout: Annotated[
        Fraction,
        Setting(
            "Caption dropout",
            "The probability that an image is trained with an empty caption; a little (0.05 to 0.1) helps guidance.",
            group="Captions",
            applies_when=USES_DENOISER,
        ),
    ] = 0.0
    caption_dropout_2: Annotated[
        Fraction | None,
        advanced_setting(
            "Caption dropout 2",
            "The probability of an empty caption for the second text encoder alone, drawn on its own; Caption dropout "
            "then counts for the first alone. Images that a method samples during training get the caption.",
            group="Captions",
            empty_means="together with the first",
            applies_when=When("model.family", lambda: families_with("text_encoder", at_least=2)),
        ),
    ] = None
    caption_dropout_3: Annotated[
        Fraction | None,
        advanced_setting(
            "Caption dropout 3",
            "The probability of an empty caption for the third text encoder alone, drawn on its own. Images that a "
            "method samples during training get the caption.",
            group="Captions",
            empty_means="together with the first",
            applies_when=When("model.family", lambda: families_with("text_encoder", at_least=3)),
        ),
    ] = None
    latent_cache: Annotated[
        bool,
        Setting(
            "Cache latents",
            "Encodes every image once and keeps its latents on disk: much faster, and the VAE needs no "
            "memory while training.",
            group="Caches",
            applies_when=USES_DENOISER,
        ),
    ] = True
    text_cache: Annotated[
        bool,
        Setting(
            "Cache text embeddings",
            "Encodes every caption once, unless its text encoder is trained.",
            group="Caches",
            applies_when=USES_DENOISER,
        ),
    ] = True
    cache_location: Annotated[
        Literal["disk", "memory"],
        advanced_setting(
            "Cache location",
            "On disk: the cache folder, reused by later runs. In memory: nothing is written; every run encodes its "
            "images and captions anew.",
            group="Caches",
            choice_labels={"disk": "On disk", "memory": "In memory"},
            changeable_on_resume=True,
            applies_when=USES_DENOISER,
        ),
    ] = "disk"
    cache_dtype: Annotated[
        Literal["encoder", "bfloat16", "float16"],
        advanced_setting(
            "Cache dtype",
            "As encoded: latents in the VAE's dtype, text embeddings as the text encoders return them. A 16-bit dtype "
            "needs half the space of float32, and makes no difference to a run with that precision.",
            group="Caches",
            choice_labels={"encoder": "As encoded", "bfloat16": "bfloat16", "float16": "float16"},
            applies_when=USES_DENOISER,
        ),
    ] = "encoder"
    verify_cache: Annotated[
        bool,
        advanced_setting(
            "Verify cache",
            "Re-reads every image and compares its content with the cache, instead of trusting size and date.",
            group="Caches",
            changeable_on_resume=True,
            applies_when=USES_DENOISER,
        ),
    ] = False
    loader_threads: Annotated[
        int,
        *Interval(ge=1, le=64),
        advanced_setting(
            "Loader threads", "How many images are loaded in parallel.", group="Caches", changeable_on_resume=True
        ),
    ] = 2
