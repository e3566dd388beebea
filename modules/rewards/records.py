"""The records of the rewards that load weights, run code or ask a server; their factories are named here.

The rewards that need no file are in `measures.py`.
"""

from __future__ import annotations

from modules.formats.published_files import PublishedFile
from modules.rewards.address import parse_address
from modules.rewards.spec import RewardSpec, not_empty
from modules.rewards.user_code_file import split_reference
from modules.system.factories import Package

# Readable text: whether text recognition finds the quoted text of the prompt in the image.
OCR = RewardSpec(
    "ocr",
    "Readable text (OCR)",
    'Whether the quoted text of a prompt, as in: a sign with the word "OPEN", is readable in the image. Prompts '
    "without quoted text have no score. Needs the packages rapidocr (27 MB with its models, Apache-2.0) and "
    "onnxruntime (MIT).",
    "modules.rewards.models.ocr:make_ocr",
    "0 to 1 (completely readable)",
    is_differentiable=False,
    packages=(Package("rapidocr"), Package("onnxruntime")),
)

# PickScore: a CLIP model trained on human choices between two images of a caption (Kirstain et al. 2023).
PICKSCORE = RewardSpec(
    "pickscore",
    "PickScore",
    "How much people would prefer an image for its caption, trained on choices between two images.",
    "modules.rewards.models.clip:make_pickscore",
    "18 to 24",
    files=(
        PublishedFile(
            "file", "yuvalkirstain/PickScore_v1", "", 3_940_000_000, revision="a4e4367c6dfa7288a00c550414478f865b875800"
        ),
    ),
    licence="MIT",
    source="Kirstain et al. 2023, Pick-a-Pic",
)

# CLIP score: how well an image matches its caption (Radford et al. 2021; Hessel et al. 2021).
CLIP_SCORE = RewardSpec(
    "clip_score",
    "CLIP score",
    "How well an image matches its caption.",
    "modules.rewards.models.clip:make_clip_score",
    "0.2 to 0.4",
    files=(
        PublishedFile(
            "file",
            "openai/clip-vit-large-patch14",
            "",
            1_710_000_000,
            revision="32bd64288804d66eefd0ccbe215aa642df71cc41",
        ),
    ),
    licence="MIT",
    source="Radford et al. 2021; Hessel et al. 2021",
)

# LAION's aesthetic predictor v2: a small network on top of CLIP's embedding of an image.
AESTHETIC = RewardSpec(
    "aesthetic",
    "Aesthetic (LAION)",
    "How pleasing an image is, regardless of its caption.",
    "modules.rewards.models.clip:make_aesthetic",
    "1 to 10",
    files=(
        PublishedFile(
            "file",
            "trl-lib/ddpo-aesthetic-predictor",
            "aesthetic-model.pth",
            3_700_000,
            revision="cf4bd10345610935a80a5d3be9a3133c50f121e4",
        ),
        PublishedFile(
            "clip_model",
            "openai/clip-vit-large-patch14",
            "",
            1_710_000_000,
            revision="32bd64288804d66eefd0ccbe215aa642df71cc41",
        ),
    ),
    licence="Apache-2.0",
    source="LAION aesthetic predictor v2 (sac+logos+ava1-l14-linearMSE)",
)

# HPS v2: a CLIP ViT-H trained on human rankings of images of the same caption (Wu et al. 2023).
#
# Published in OpenCLIP's layout; images that are not square are padded, as its authors do. Scores of v2 and v2.1 are
# not comparable.
HPS = RewardSpec(
    "hps",
    "Human preference (HPS v2)",
    "How much people would prefer an image for its caption. Only scores for the same caption are comparable.",
    "modules.rewards.models.clip:make_hps",
    "0.2 to 0.4",
    files=(
        PublishedFile(
            "file",
            "xswu/HPSv2",
            "HPS_v2_compressed.pt",
            1_970_000_000,
            item_bytes=2,
            revision="697403c78157020a1ae59d23f111aa58ced35b0a",
        ),
    ),
    licence="Apache-2.0",
    source="Wu et al. 2023, Human Preference Score v2",
)

# ImageReward: a BLIP model trained on people's comparisons of images for the same caption.
IMAGE_REWARD = RewardSpec(
    "image_reward",
    "ImageReward",
    "How much people would like an image for its caption. Alone it is easily overoptimized: combine it with another.",
    "modules.rewards.models.image_reward:make_image_reward",
    "about -2 to 2 (mean 0)",
    files=(
        PublishedFile(
            "file",
            "THUDM/ImageReward",
            "ImageReward.pt",
            1_790_000_000,
            revision="5736be03b2652728fb87788c9797b0570450ab72",
        ),
        PublishedFile(
            "vocabulary",
            "google-bert/bert-base-uncased",
            "vocab.txt",
            232_000,
            revision="86b5e0934494bd15c9632b12f734a8a67f723594",
        ),
    ),
    licence="Apache-2.0",
    source="ImageReward v1.0 (Xu et al. 2023, arXiv 2304.05977)",
)

# HPSv3: a vision language model with a head, trained on comparisons of photographs and of images of many models.
HPSV3 = RewardSpec(
    "hpsv3",
    "Human preference (HPSv3)",
    "How much people would prefer an image for its caption: Qwen2-VL-7B with a head. It needs about 16 GB of GPU "
    "memory in addition to the model that is trained.",
    "modules.rewards.models.hpsv3:make_hpsv3",
    "about -5 to 15, higher is better",
    files=(
        PublishedFile(
            "file",
            "MizzenAI/HPSv3",
            "HPSv3.safetensors",
            16_600_000_000,
            revision="4f81e3e09edd82fe3c5f636444c721b592a735ca",
            keeps_dtype=True,
        ),
        PublishedFile(
            "vocabulary",
            "Qwen/Qwen2-VL-7B-Instruct",
            "tokenizer.json",
            7_030_000,
            revision="eed13092ef92e448dd6875b2a00151bd3f7db0ac",
        ),
    ),
    licence="Apache-2.0",
    source="HPSv3 (Ma et al. 2025, arXiv 2508.03789)",
)

# UnifiedReward: a vision language model that was trained to score images, in words.
UNIFIED_REWARD = RewardSpec(
    "unified_reward",
    "UnifiedReward",
    "How well an image matches its caption, and how good it looks: Qwen2.5-VL describes it, then writes a score. That "
    "takes seconds for each image. Enter the folder or the repository of its weights: CodeGoat24/UnifiedReward-qwen-7b "
    "needs about 17 GB of GPU memory in addition to the model that is trained, CodeGoat24/UnifiedReward-qwen-3b 8 GB.",
    "modules.rewards.models.unified_reward:make_unified_reward",
    "1 to 5",
    is_differentiable=False,
    files=(
        PublishedFile(
            "file",
            "",  # the user names one
            "",
            16_600_000_000,
            further=("generation_config.json", "tokenizer.json"),
            keeps_dtype=True,
        ),
    ),
    licence="MIT",
    source="UnifiedReward (Wang et al. 2025, arXiv 2503.05236)",
)

# A user-defined reward: a function in a Python file, which runs only if exactly this file was approved.
USER_CODE = RewardSpec(
    "user_code",
    "Custom function",
    "A function in your own Python file. It runs as a program with your permissions, in a process of its own, and "
    "only if you approved the file. It takes images (B, 3, H, W) in [0, 1] and prompts, and returns a tensor with one "
    "number per image. With "
    "`name.is_differentiable = False` below it, it may use any library and return a list, with None for an image "
    "without a score; methods that need the gradient of the reward refuse it.",
    "modules.rewards.models.user_process:make_user_code",
    "depends on the function",
    checks={"file": split_reference},
    own_settings=frozenset({"timeout_seconds"}),
    runs_code=True,
)

# Any program that scores images over HTTP: for models whose packages do not fit into this environment.
REWARD_SERVER = RewardSpec(
    "reward_server",
    "Reward server (HTTP)",
    "Another program scores the images: a reward model with its own packages, on this computer or another one. It gets "
    "each batch of images and prompts in one request (docs/rewards.md). Servers on other computers get images only "
    "after you approved their address.",
    "modules.rewards.models.served:make_served",
    "depends on the server",
    is_differentiable=False,
    checks={"address": parse_address},
    own_settings=frozenset({"timeout_seconds", "retry_minutes"}),
    client="modules.rewards.http_reward:make_client",
)

# A chat model that can see, behind the interface that vLLM, llama.cpp, Ollama, LM Studio and paid services share.
VISION_MODEL = RewardSpec(
    "vision_model",
    "Vision language model",
    "A vision language model scores each image by your rubric. It is asked through an OpenAI-style endpoint (chat "
    "completions): vLLM, llama.cpp, Ollama, LM Studio or a service. An API key is entered under Tokens…. Servers on "
    "other computers get images only after you approved their address.",
    "modules.rewards.models.served:make_served",
    "0 to the highest score",
    is_differentiable=False,
    checks={
        "address": parse_address,
        "model_name": not_empty("No vision language model is named.", "Enter the model's name as its server lists it."),
        "rubric": not_empty(
            "The vision language model has no rubric.", "Describe what makes a good image, and a bad one."
        ),
    },
    own_settings=frozenset({"timeout_seconds", "retry_minutes", "highest_score"}),
    client="modules.rewards.vision_model:make_client",
)
