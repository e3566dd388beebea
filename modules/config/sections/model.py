"""The model a run starts from, and its parts."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge, Le

from modules.families.registry import families_with, family_labels
from modules.settings.every import Every
from modules.settings.field import Section, Setting, When, one_of

_PLAIN = {"float32": "float32", "bfloat16": "bfloat16", "float16": "float16"}
_QUANTISED = {
    "float8": "float8",
    "int8": "int8",
    "nfloat4": "nfloat4",
    "float8_w8a8": "float8, computed in float8",
    "int8_w8a8": "int8, computed in int8",
    "gguf": "GGUF",
    "gguf_a8_float": "GGUF, computed in float8",
    "gguf_a8_int": "GGUF, computed in int8",
}


class Model(Section):
    """The model a run starts from."""

    family: Annotated[
        str,
        *one_of(family_labels),
        Setting("Model family", "Which kind of model the base model is.", group="Base model"),
    ] = "sd"
    base_model: Annotated[
        str,
        Setting(
            "Base model",
            "The model to start from: a single file (.safetensors or .ckpt), a folder in diffusers layout, or the name "
            "of a Hugging Face repository (it is downloaded once and then used offline).",
            group="Base model",
            path_kind="model",
        ),
    ] = "stable-diffusion-v1-5/stable-diffusion-v1-5"
    variant: Annotated[
        Literal["text_to_image", "inpainting", "depth"],
        Setting(
            "Kind of model",
            "What the model is given beside a prompt: nothing, an image with a hole to fill, or a depth map.",
            group="Base model",
            level="advanced",
            choice_labels={"text_to_image": "Text to image", "inpainting": "Inpainting", "depth": "Depth to image"},
            not_yet_choices=frozenset({"inpainting", "depth"}),
        ),
    ] = "text_to_image"
    prediction: Annotated[
        Literal["auto", "epsilon", "v_prediction"],
        Setting(
            "What the model predicts",
            "Automatic takes what the model says of itself. Name it only for a model that says nothing or the wrong "
            "thing, or to train a model over to v-prediction.",
            group="Base model",
            level="advanced",
            choice_labels={"auto": "Automatic", "epsilon": "The noise (epsilon)", "v_prediction": "v-prediction"},
        ),
    ] = "auto"
    zero_terminal_snr: Annotated[
        Literal["auto", "on", "off"],
        Setting(
            "Zero terminal SNR",
            "Makes the last noise level pure noise, so that very dark and very bright images can be painted "
            "(Lin et al. 2023). Only with v-prediction. Automatic takes what the model says of itself.",
            group="Base model",
            level="advanced",
            choice_labels={"auto": "Automatic", "on": "On", "off": "Off"},
        ),
    ] = "auto"
    vae_file: Annotated[
        str,
        Setting(
            "VAE file",
            "A VAE that takes the place of the model's own: a single file that holds one.",
            group="Base model",
            level="advanced",
            path_kind="model",
            empty_means="the model's own",
            applies_when=When("family", families_with("vae")),
        ),
    ] = ""
    clip_skip: Annotated[
        int,
        Ge(0),
        Le(11),
        Setting(
            "Clip skip",
            "How many of the text encoder's last layers are left out: 0 for most models, 1 for many anime "
            "models (other programs call that clip skip 2).",
            group="Base model",
            unit="layers",
            level="advanced",
        ),
    ] = 0
    clip_skip_2: Annotated[
        int | None,
        Ge(0),
        Le(31),
        Setting(
            "Clip skip of the second encoder",
            "The same for the second text encoder alone.",
            group="Base model",
            unit="layers",
            level="advanced",
            empty_means="as for the first",
            applies_when=When("family", families_with("text_encoder", at_least=2)),
        ),
    ] = None
    compile: Annotated[
        bool,
        Setting(
            "Compile the model",
            "Turns the image model into faster code at the start, which takes some minutes.",
            group="Base model",
            level="advanced",
            changeable_on_resume=True,
            not_yet="ignored",
        ),
    ] = False
    circular_padding: Annotated[
        bool,
        Setting(
            "Circular padding",
            "The left edge of an image borders on the right one, and the top on the bottom: for tiles and panoramas.",
            group="Base model",
            level="advanced",
            not_yet="refused",
        ),
    ] = False
    offline: Annotated[
        bool,
        Setting(
            "Offline",
            "Never ask the network for anything; a repository must then already be in the local cache.",
            group="Base model",
            level="advanced",
            changeable_on_resume=True,
        ),
    ] = False
    hub_cache_dir: Annotated[
        str,
        Setting(
            "Download folder",
            "Where downloaded models are kept.",
            group="Base model",
            level="advanced",
            path_kind="folder",
            empty_means="the usual Hugging Face cache",
            changeable_on_resume=True,
        ),
    ] = ""


class Part(Section):
    """One part of the model: whether it learns, how fast, for how long, and how it is kept in memory."""

    train: Annotated[bool, Setting("Train", "Whether this part learns.", only_if_trainable=True)] = True
    learning_rate: Annotated[
        float | None,
        Ge(0),
        Le(100),
        Setting(
            "Learning rate",
            "This part's own learning rate.",
            empty_means="the general one",
            applies_when=When("train", (True,)),
            only_if_trainable=True,
        ),
    ] = None
    stop_after: Annotated[
        Every,
        Setting(
            "Stop training after",
            "This part stops learning once this much of the run has passed, and stays as it is from then on.",
            applies_when=When("train", (True,)),
            only_if_trainable=True,
            changeable_on_resume=True,
        ),
    ] = Every()
    checkpointing: Annotated[
        Literal["off", "block", "whole"],
        Setting(
            "Gradient checkpointing",
            "Saves memory by computing parts of the forward pass twice. Per block saves most of what there is "
            "to save; the result is the same bit for bit.",
            choice_labels={"off": "Off", "block": "Per block", "whole": "Whole part at once"},
            level="advanced",
            only_if_trainable=True,
        ),
    ] = "off"
    offload_activations: Annotated[
        bool,
        Setting(
            "Offload what checkpointing keeps",
            "What is kept between the forward and the backward pass waits on the offload device. Saves memory on "
            "a GPU at some cost in speed.",
            level="advanced",
            applies_when=When("checkpointing", ("block", "whole")),
        ),
    ] = False
    offload_fraction: Annotated[
        float,
        Ge(0),
        Le(1),
        Setting(
            "Offload layers",
            "The share of the part's layers that wait on the offload device and are fetched one by one while the part "
            "is computed: 0 for none, 0.5 for half of them, 1 for all. Saves memory on a GPU at some cost in speed; "
            "the result is the same bit for bit. What learns of it learns on the offload device.",
            level="advanced",
        ),
    ] = 0.0
    train_embedding: Annotated[
        bool,
        Setting(
            "Train embeddings in it",
            "Whether new words learn their vectors of this text encoder. Without new words it says nothing.",
            level="advanced",
            only_if_trainable=True,
        ),
    ] = True
    dtype: Annotated[
        Literal[
            "float32", "bfloat16", "float16", "float8", "int8", "nfloat4", "float8_w8a8", "int8_w8a8", "gguf",
            "gguf_a8_float", "gguf_a8_int",
        ],
        Setting(
            "Weight type",
            "The number format the weights are kept in. float32 is exact; the others halve the memory, or better.",
            choice_labels={**_PLAIN, **_QUANTISED},
            level="advanced",
            not_yet_choices=frozenset(_QUANTISED),
        ),
    ] = "float32"  # fmt: skip
