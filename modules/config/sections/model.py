"""The model a run starts from, and its parts."""

from typing import Annotated, ClassVar, Literal

from modules.families.registry import FAMILIES
from modules.families.sd.spec import SdSettings
from modules.families.settings import FamilySettings
from modules.families.spec import VARIANT_LABELS
from modules.settings.conditions import USES_DENOISER
from modules.settings.every import Every
from modules.settings.field import Section, Setting, When, advanced_setting, one_of
from modules.settings.lazy_variants import lazy_variants
from modules.settings.shared_types import CheckpointMode, Fraction, UpTo100
from modules.system.factories import late

_FORMATS = "modules.quantization.registry"


class Model(Section):
    """The model a run starts from."""

    group: ClassVar[str] = "Base model"

    base_model: Annotated[
        str,
        Setting(
            "Base model",
            "The model to start from: a single file (.safetensors or .ckpt), a folder in diffusers layout, or the name "
            "of a Hugging Face repository (it is downloaded once and then used offline).",
            path_kind="model",
        ),
    ] = "stable-diffusion-v1-5/stable-diffusion-v1-5"
    variant: Annotated[
        Literal["text_to_image", "inpainting", "depth", "edit", "edit_one"],
        advanced_setting(
            "Model variant",
            "What the model is conditioned on besides the prompt: nothing, a masked image, a depth map, or the images "
            "that it edits, of which some models read one.",
            choice_labels=VARIANT_LABELS,
        ),
    ] = "text_to_image"
    family: Annotated[
        FamilySettings,
        *lazy_variants(FAMILIES, "sd"),
        Setting("Model family", "The model family of the base model, and its own settings."),
    ] = SdSettings.with_defaults()
    training_adapter: Annotated[
        str,
        advanced_setting(
            "Training adapter",
            "For a distilled base model, such as a Turbo: a LoRA file that undoes the distillation while the model "
            "trains. It is merged into the denoiser before quantizing, is not in the result, and samples are drawn "
            "without it. Validation has it, as training does.",
            path_kind="file",
            empty_means="none",
            applies_when=USES_DENOISER,
        ),
    ] = ""
    compile: Annotated[
        Literal["off", "on", "auto"],
        advanced_setting(
            "Compile the model",
            "Compiles the blocks of the denoiser for training (torch.compile): often faster steps on a GPU after some "
            "minutes of compiling, again for each size of images. Where that fails the run continues without. "
            "Automatic measures some steps of the run on a GPU without and with it, and keeps it if the rest of the "
            "run is shorter with it; on a CPU, in deterministic mode and with several devices it is off.",
            changeable_on_resume=True,
            choice_labels={"off": "Off", "on": "On", "auto": "Automatic"},
        ),
    ] = "auto"
    channels_last: Annotated[
        Literal["off", "on", "auto"],
        advanced_setting(
            "Channels last",
            "Stores the weights of convolutions, and so their results, with the channels innermost (NHWC), for which "
            "many GPUs and CPUs have faster kernels; on others it is slower. Automatic is on for the parts that a "
            "training step runs on an NVIDIA GPU with tensor cores in 16 bits, and off in deterministic mode. Results "
            "differ in rounding.",
            choice_labels={"off": "Off", "on": "On", "auto": "Automatic"},
        ),
    ] = "off"
    circular_padding: Annotated[
        bool,
        advanced_setting(
            "Circular padding",
            "Wraps the image at its edges in the denoiser and the VAE: for seamless tiles. Other programs need their "
            "own setting for it (tiling).",
        ),
    ] = False
    offline: Annotated[
        bool,
        advanced_setting(
            "Offline",
            "Never uses the network; a repository must already be in the local cache.",
            changeable_on_resume=True,
        ),
    ] = False
    hub_cache_dir: Annotated[
        str,
        advanced_setting(
            "Download folder",
            "Where downloaded models are kept.",
            path_kind="folder",
            empty_means="the usual folder",
            changeable_on_resume=True,
        ),
    ] = ""


class Part(Section):
    """One part of the model: where its weights are, whether and how long it trains, and how it is kept in memory."""

    include: Annotated[
        bool,
        Setting(
            "Use",
            "Off: the model goes without this part, as models do that lack it. That saves its memory and its download. "
            "In place of a text encoder's states it sees zeros, and understands prompts less well without T5; without "
            "a second transformer, the first one guides samples itself.",
            only_if_optional=True,
        ),
    ] = True
    file: Annotated[
        str,
        Setting(
            "File",
            "A file with the weights of this part, in place of the base model's: .safetensors as ComfyUI or diffusers "
            "name them, also in float8 with scales, the .index.json of several files, or GGUF. If the denoiser, the "
            "text encoders and the VAE each have one, only configs and tokenizers are read from the base model.",
            path_kind="model",
            empty_means="the base model's own",
            only_if_reads_file=True,
        ),
    ] = ""
    train: Annotated[
        bool,
        Setting(
            "Train",
            "Trains this part. A large text encoder, such as T5, is not trained by default: it needs as much memory as "
            "the denoiser, and captions cannot be cached then.",
            only_if_trainable=True,
        ),
    ] = True
    learning_rate: Annotated[
        UpTo100 | None,
        Setting(
            "Learning rate",
            "This part's own learning rate.",
            empty_means="the general one",
            applies_when=When("train", (True,)),
            only_if_trainable=True,
            changeable_on_resume=True,
        ),
    ] = None
    stop_after: Annotated[
        Every,
        Setting(
            "Stop training after",
            "Freezes this part once this much of the run has passed.",
            is_span=True,
            applies_when=When("train", (True,)),
            only_if_trainable=True,
            changeable_on_resume=True,
        ),
    ] = Every()
    checkpointing: Annotated[
        CheckpointMode,
        advanced_setting(
            "Gradient checkpointing",
            "Saves memory by recomputing activations in the backward pass. Automatic recomputes as few blocks as fit "
            "the free memory, by the estimate at the start of the run. Per block saves most of what there is "
            "to save. Transformer blocks only saves less and is faster. Cheap operations only keeps the results of "
            "what takes long to compute and saves least; every operation costs some overhead, so it pays only for "
            "large images on a GPU. The result is the same bit for bit.",
            choice_labels={
                "off": "Off",
                "auto": "Automatic",
                "selective": "Cheap operations only",
                "transformer": "Transformer blocks only",
                "block": "Per block",
                "whole": "Whole part at once",
            },
            only_if_trainable=True,
        ),
    ] = "off"
    offload_activations: Annotated[
        bool,
        advanced_setting(
            "Activation offloading",
            "Keeps the checkpointed activations on the offload device until the backward pass. Saves memory on "
            "a GPU at some cost in speed.",
            applies_when=When("checkpointing", ("auto", "transformer", "block", "whole")),
        ),
    ] = False
    offload_fraction: Annotated[
        Fraction,
        advanced_setting(
            "Layer offload fraction",
            "The fraction of the part's layers kept on the offload device and fetched one by one while the part "
            "runs: 0 for none, 0.5 for half of them, 1 for all. Saves memory on a GPU at some cost in speed; "
            "the result is the same bit for bit. Offloaded layers that train are updated on the offload device.",
        ),
    ] = 0.0
    train_embedding: Annotated[
        bool,
        advanced_setting(
            "Train embeddings",
            "Whether embeddings are trained for this text encoder. Has no effect without embeddings.",
            applies_when=When("embeddings.words", is_set=True),
            only_if_trainable=True,
        ),
    ] = True
    dtype: Annotated[
        str,
        *one_of(late(f"{_FORMATS}:weight_dtype_labels")),
        advanced_setting(
            "Weight dtype",
            "",
            help_from=late(f"{_FORMATS}:help_on_weight_dtypes"),
        ),
    ] = "float32"
