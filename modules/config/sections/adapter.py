"""The adapters: small trainable layers on a frozen model."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, Lt

from modules.settings.field import Section, Setting, When

AN_ADAPTER = When("training.trains", ("adapter",))


Rank = Annotated[
    int,
    Ge(1),
    Le(1024),
    Setting(
        "Rank",
        "How much the LoRA can hold; 8 to 32 for most subjects. The file grows with it.",
        group="Adapter",
        applies_when=AN_ADAPTER,
    ),
]
Alpha = Annotated[
    float,
    Gt(0),
    Le(4096),
    Setting(
        "Alpha",
        "The strength of the LoRA is alpha divided by rank; equal values give strength 1.",
        group="Adapter",
        applies_when=AN_ADAPTER,
    ),
]
Dropout = Annotated[
    float,
    Ge(0),
    Lt(1),
    Setting(
        "Dropout",
        "The share of the LoRA's inputs that are left out at random.",
        group="Adapter",
        applies_when=AN_ADAPTER,
        level="advanced",
    ),
]
Layers = Annotated[
    Literal["attention_mlp", "attention", "all", "custom"],
    Setting(
        "Layers",
        "Which layers of the image model get a LoRA: those of the attention blocks, only the attention "
        "itself, every linear and convolution layer, or those you name. The text encoder always gets all.",
        group="Adapter",
        applies_when=AN_ADAPTER,
        level="advanced",
        choice_labels={
            "attention_mlp": "Attention blocks",
            "attention": "Attention only",
            "all": "All layers",
            "custom": "Named below",
        },
    ),
]
LayerNames = Annotated[
    str,
    Setting(
        "Layer names",
        "Parts of layer names, separated by commas: a layer is taken if its name contains one of them.",
        group="Adapter",
        level="advanced",
        applies_when=When("layers", ("custom",)),
    ),
]
LayerPatterns = Annotated[
    bool,
    Setting(
        "Names are patterns",
        "Reads the layer names as regular expressions.",
        group="Adapter",
        level="advanced",
        applies_when=When("layers", ("custom",)),
        not_yet="refused",
    ),
]
StartFrom = Annotated[
    str,
    Setting(
        "Start from",
        "A LoRA file to learn on from, in kohya or diffusers form. Its rank and its layers must be those set here.",
        group="Adapter",
        level="advanced",
        applies_when=AN_ADAPTER,
        path_kind="file",
        empty_means="a fresh LoRA",
    ),
]
WeightType = Annotated[
    Literal["float32", "bfloat16", "float16"],
    Setting(
        "Weight type",
        "The number format of the LoRA's own weights while training.",
        group="Adapter",
        applies_when=AN_ADAPTER,
        level="advanced",
        choice_labels={"float32": "float32", "bfloat16": "bfloat16", "float16": "float16"},
        not_yet_choices=frozenset({"float16"}),
    ),
]
Bundle = Annotated[
    bool,
    Setting(
        "Embeddings in the same file",
        "Writes the embeddings that are trained beside the adapter into its file.",
        group="Adapter",
        level="advanced",
        applies_when=AN_ADAPTER,
        not_yet="ignored",
    ),
]


class Lora(Section):
    """LoRA (Hu et al. 2021): a low-rank product beside each chosen layer."""

    name: Literal["lora"] = "lora"
    rank: Rank = 16
    alpha: Alpha = 16.0
    dropout: Dropout = 0.0
    start_from: StartFrom = ""
    layers: Layers = "attention_mlp"
    custom_layers: LayerNames = ""
    layers_regex: LayerPatterns = False
    dtype: WeightType = "float32"
    bundle_embeddings: Bundle = True
    decompose: Annotated[
        bool,
        Setting(
            "DoRA",
            "Learns length and direction of the weights apart (Liu et al. 2024).",
            group="Adapter",
            level="advanced",
            applies_when=AN_ADAPTER,
            not_yet="refused",
        ),
    ] = False
    decompose_norm_eps: Annotated[
        bool,
        Setting(
            "DoRA: guard the norm",
            "Adds the smallest number to the norm, so that nothing is divided by zero.",
            group="Adapter",
            level="advanced",
            applies_when=When("decompose", (True,)),
            not_yet="refused",
        ),
    ] = True
    decompose_output_axis: Annotated[
        bool,
        Setting(
            "DoRA: along the outputs",
            "Takes the length along the outputs of a layer and not along its inputs.",
            group="Adapter",
            level="advanced",
            applies_when=When("decompose", (True,)),
            not_yet="refused",
        ),
    ] = False


class Loha(Section):
    """LoHa (Hyeon-Woo et al. 2022): the elementwise product of two low-rank products."""

    name: Literal["loha"] = "loha"
    rank: Rank = 16
    alpha: Alpha = 16.0
    dropout: Dropout = 0.0
    start_from: StartFrom = ""
    layers: Layers = "attention_mlp"
    custom_layers: LayerNames = ""
    layers_regex: LayerPatterns = False
    dtype: WeightType = "float32"
    bundle_embeddings: Bundle = True


class Lokr(Section):
    """LoKr (Yeh et al. 2024): a Kronecker product of a small and a low-rank matrix."""

    name: Literal["lokr"] = "lokr"
    rank: Rank = 16
    alpha: Alpha = 16.0
    dropout: Dropout = 0.0
    start_from: StartFrom = ""
    layers: Layers = "attention_mlp"
    custom_layers: LayerNames = ""
    layers_regex: LayerPatterns = False
    dtype: WeightType = "float32"
    bundle_embeddings: Bundle = True
    factor: Annotated[
        int, Ge(-1), Le(1024), Setting("Factor", "The size of the small matrix; -1 finds one.", group="Adapter")
    ] = -1
    decompose_both: Annotated[
        bool, Setting("Decompose both", "Makes both matrices low-rank products.", group="Adapter", level="advanced")
    ] = False
    use_tucker: Annotated[
        bool, Setting("Tucker form", "For convolutions of more than one pixel.", group="Adapter", level="advanced")
    ] = False
    full_matrix: Annotated[
        bool, Setting("Full matrix", "Makes neither matrix a low-rank product.", group="Adapter", level="advanced")
    ] = False
    decompose: Annotated[
        bool, Setting("DoRA", "Learns length and direction of the weights apart.", group="Adapter", level="advanced")
    ] = False
    decompose_output_axis: Annotated[
        bool,
        Setting("DoRA: along the outputs", "Takes the length along the outputs.", group="Adapter", level="advanced"),
    ] = True
    vec_trick: Annotated[
        bool, Setting("Vec trick", "Multiplies without building the product.", group="Adapter", level="advanced")
    ] = True


class Oft(Section):
    """OFT (Qiu et al. 2023): turns the outputs of each layer in blocks and keeps their lengths."""

    name: Literal["oft"] = "oft"
    dropout: Dropout = 0.0
    start_from: StartFrom = ""
    layers: Layers = "attention_mlp"
    custom_layers: LayerNames = ""
    layers_regex: LayerPatterns = False
    dtype: WeightType = "float32"
    bundle_embeddings: Bundle = True
    block_size: Annotated[
        int, Ge(1), Le(4096), Setting("Block size", "How many outputs turn together.", group="Adapter")
    ] = 32
    block_share: Annotated[
        bool, Setting("Share blocks", "All blocks of a layer turn alike.", group="Adapter", level="advanced")
    ] = False
    scaled: Annotated[
        bool, Setting("Scaled", "Learns a length for each output, too.", group="Adapter", level="advanced")
    ] = False


AdapterSettings = Lora | Loha | Lokr | Oft
ADAPTER_LABELS = {"lora": "LoRA", "loha": "LoHa", "lokr": "LoKr", "oft": "OFT"}
