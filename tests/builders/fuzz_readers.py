"""The readers of files that others made: valid files of each, how to change them, and how the program reads them."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path

from tests.builders import hostile_files as hostile
from tests.builders import onetrainer_files as onetrainer
from tests.builders.mutations import Mutate, of_bytes, of_json, of_safetensors, of_zip

_FIXTURES = Path(__file__).parents[1] / "unit" / "fixtures"
_PRESETS = Path(__file__).parents[2] / "training_presets"


@dataclass(frozen=True)
class Reader:
    """`corpus` returns valid files; `read` writes one to a folder and reads it, and raises what must not happen."""

    name: str
    corpus: Callable[[Path], list[bytes]]
    mutate: Mutate
    read: Callable[[bytes, Path], None]


def _write(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


# -- model files ------------------------------------------------------------------------------------------------------


def _inspect(path: Path) -> None:
    from modules.families.kinds.identify import who_loads_file

    kind, loads = who_loads_file(path)
    text = json.dumps({**kind.to_json(), "loads": [x.to_json() for x in loads]})
    if len(text) > 20_000:
        raise AssertionError(f"{len(text)} characters of output")
    if "code" in kind.facts and any(x.complete for x in loads):
        raise AssertionError("a program loads a file with code")


def _load(path: Path) -> None:
    from modules.formats.stored_tensors import read_stored
    from modules.system.errors import DarkroomError

    try:
        tensors, _ = read_stored(path)
        for tensor in list(tensors.values())[:5]:
            tensor.make()
    except DarkroomError:
        pass


def _adapt(path: Path) -> None:
    from modules.families.registry import published_model
    from modules.formats.adapter_file import read_adapter_file
    from modules.system.errors import DarkroomError

    record = published_model("sd1")
    with contextlib.suppress(DarkroomError):
        read_adapter_file(path, record.adapter_targets(record.shipped_configs()))


_QUERY = "down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q"
_OF_OTHERS: list[dict[str, tuple[int, ...]]] = [
    {f"unet.{_QUERY}.oft_R.weight": (80, 6), f"unet.{_QUERY}.oft_R.scaled_oft": (), f"unet.{_QUERY}.oft_R.x": (1,)},
    {f"lora_unet_x.hada_w{n}_{side}": (2, 2, 1, 1) for n in (1, 2) for side in "ab"} | {"lora_unet_x.alpha": ()},
    {"lora_unet_x.weight": (2,), "lora_unet_x.on_input": ()},
    {"lllite_unet_x.conditioning1.0.weight": (2, 3, 4, 4), "lllite_unet_x.down.0.weight": (2, 2)},
    {"lora_controlnet": (0,), "input_blocks.1.0.in_layers.2.up": (2, 2, 1, 1)},
    {"emp_params": (2, 768), "emp_params_out": (2, 768)},
    {
        **{"model_ema.diffusion_modelinput_blocks00weight": (2, 4, 3, 3), "model_ema.decay": ()},
        **{"model_ema.diffusion_modeloutput_blocks00x": (2,), "first_stage_model.encoder.down.0.block.0.x": (2,)},
        **{"model_ema.diffusion_modelinput_blocks11transformer_blocks0attn2to_kweight": (2, 768)},
    },
]


def _raw_peft() -> bytes:
    layer = f"base_model.model.{_QUERY}"
    return _tensors({f"{layer}.hada_w{n}_{side}": (4, 4) for n in (1, 2) for side in "ab"}, {})


def _peft_configs(folder: Path) -> list[bytes]:
    usual = {"peft_type": "LOHA", "r": 4, "alpha": 2, "rank_pattern": {"to_q": 4}, "alpha_pattern": {"attn1.to_q": 1.5}}
    return [json.dumps(usual).encode(), json.dumps({"lora_alpha": 4, "use_rslora": True, "alpha": 1e9}).encode()]


def _read_peft_config(content: bytes, folder: Path) -> None:
    _write(folder, "adapter_config.json", content)
    path = _write(folder, "adapter_model.safetensors", _raw_peft())
    _inspect(path)
    _adapt(path)


def _safetensors(folder: Path) -> list[bytes]:
    from tests.unit.test_kinds import kohya, model_shapes

    def some(shapes: dict[str, tuple[int, ...]], step: int) -> dict[str, tuple[int, ...]]:
        return {n: tuple(min(s, 2048) for s in shape) for n, shape in list(shapes.items())[::step]}

    models = [some(model_shapes(m), 40) for m in ("sd1", "sd2", "sdxl")]
    markers = {
        "model.diffusion_model.input_blocks.0.0.weight": (1, 4, 1, 1),
        "model.diffusion_model.output_blocks.x": (1,),
    }
    texts = {
        "cond_stage_model.model.x": (1,),
        "model.diffusion_model.output_blocks.11.1.transformer_blocks.0.norm1.bias": (8,),
    }
    others: list[dict[str, tuple[int, ...]]] = [
        {n: (1,) * len(s) for n, s in some(kohya("sdxl"), 100).items()},
        {"unet.down_blocks.0.attn2.to_k.lora_A.weight": (2, 8), "unet.down_blocks.0.attn2.to_k.lora_B.weight": (8, 2)},
        {"emb_params": (1, 8)},
        {"encoder.down.0.block.0.conv1.weight": (1,), "decoder.conv_in.weight": (2, 4, 1, 1)},
        {**markers, **texts, "v_pred": (0,), "ztsnr": (0,)},
        *_OF_OTHERS,
    ]
    small = [{n: tuple(min(s, 2) for s in shape) for n, shape in shapes.items()} for shapes in models]
    metadata = {"modelspec.architecture": "stable-diffusion-v1/lora", "modelspec.prediction_type": "v"}
    metadata |= {"darkroom_part_configs": json.dumps({"unet": {"layers_per_block": 1}}), "ss_v2": "True"}
    metadata |= {"lora_adapter_metadata": json.dumps({"unet.r": 2, "unet.lora_alpha": 1})}
    return [*(_tensors(shapes, metadata) for shapes in (*others, *small)), *_scaled_float8()]


def _tensors(shapes: dict[str, tuple[int, ...]], metadata: dict[str, str]) -> bytes:
    header: dict[str, object] = {"__metadata__": metadata}
    end = 0
    for name, shape in shapes.items():
        size = 2
        for n in shape:
            size *= n
        header[name] = {"dtype": "F16", "shape": list(shape), "data_offsets": [end, end + size]}
        end += size
    return hostile.header_of(header, bytes(end))


def _scaled_float8() -> list[bytes]:
    """Text encoders in scaled float8, in both spellings."""
    import torch
    from safetensors.torch import save

    from tests.builders.part_files import scaled_float8

    layer = {f"model.layers.0.self_attn.{x}_proj.weight": torch.ones(4, 4) for x in "qkv"}
    return [save(dict(scaled_float8(layer, names))) for names in ("scale_weight", "weight_scale of rows")]


def _indices(folder: Path) -> list[bytes]:
    importlib.import_module("modules.formats.stored_tensors")  # the first import of torch takes seconds
    names = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    places = dict(zip(("model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight"), names, strict=True))
    return [json.dumps({"metadata": {"total_size": 64}, "weight_map": places}).encode()]


def _read_index(content: bytes, folder: Path) -> None:
    for number, name in enumerate(("model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight"), start=1):
        _write(folder, f"model-0000{number}-of-00002.safetensors", _tensors({name: (2, 2)}, {}))
    path = _write(folder, "model.safetensors.index.json", content)
    _inspect(path)
    _load(path)


def _read_safetensors(content: bytes, folder: Path) -> None:
    path = _write(folder, "m.safetensors", content)
    _inspect(path)
    _load(path)
    _adapt(path)


def _gguf_files(folder: Path) -> list[bytes]:
    import torch

    from benchmarks.gguf_file import write_gguf

    unet = {"input_blocks.0.0.weight": (8, 4, 2, 2), "output_blocks.0.0.x": (3,), "a.attn2.to_k.weight": (8, 768)}
    found = []
    for kind in ("Q8_0", "Q4_0", "F16"):
        write_gguf(folder / "m.gguf", {n: torch.ones(s) for n, s in unet.items()}, kind=kind, metadata={"x": "y"})
        found.append((folder / "m.gguf").read_bytes())
    return found


def _read_gguf(content: bytes, folder: Path) -> None:
    path = _write(folder, "m.gguf", content)
    _inspect(path)
    _load(path)


_TOKENS = (
    *(b"c", b"R", b"o", b"i", b"b", b"Q", b"(", b"t", b"\x81", b"\x92", b"\x93", b"\x82\x01", b"h\x00", b"q\x00", b"."),
    *(b"0", b"2", b"1", b"}", b"]", b")", b"u", b"e", b"s", b"a", b"\x85", b"\x86", b"\x87", b"\x8b\x08\x00\x00\x00"),
    *(
        hostile.named(n)
        for n in ("posix.system", "builtins.eval", "collections.OrderedDict", "torch._utils._rebuild_tensor_v2")
    ),
    *(hostile.text(t) for t in ("state_dict", "posix", "system", "storage", "a" * 2_000)),
    *(hostile.tensor(), b"I01\n", b"L9999999999L\n", b"S'a'\n", b"F1e999\n", b"g0\n", b"p0\n"),
)


@cache
def _programs() -> tuple[bytes, ...]:
    planted = list(hostile.planted(Path("/nonexistent/canary")).values())
    return (hostile.state_dict(), hostile.shared_dictionaries(3, 3), *(hostile.state_dict(v) for v in planted))


def _pickles(folder: Path) -> list[bytes]:
    import torch

    held = {
        "state_dict": {"a": torch.ones(2), "b": {"c": torch.ones(1, dtype=torch.float16)}},
        "x": [1, None, (2, "y")],
    }
    held |= {"global_step": 3, "p": torch.nn.Parameter(torch.ones(1)), "s": {1, "two"}, "f": 1.5}
    pair = ({"linear.0.weight": torch.ones(2)}, {"linear.0.weight": torch.ones(2)})
    hypernetwork = {320: pair, "step": 1, "layer_structure": [1, 2, 1]}
    embedding = {"string_to_param": torch.nn.ParameterDict({"*": torch.nn.Parameter(torch.ones(1, 768))})}
    found = [hostile.zipped(program) for program in _programs()] + [hostile.legacy(p) for p in _programs()[:8]]
    for protocol, is_zip, content in product((2, 4), (True, False), (held, hypernetwork, embedding)):
        buffer = io.BytesIO()
        torch.save(content, buffer, pickle_protocol=protocol, _use_new_zipfile_serialization=is_zip)
        found.append(buffer.getvalue())
    return found


def _mutate_pickle(content: bytes, rng: object) -> bytes:
    is_zip = content.startswith(b"PK")
    return (of_zip(of_bytes(_TOKENS)) if is_zip else of_bytes(_TOKENS))(content, rng)  # type: ignore[arg-type]


def _read_pickle(content: bytes, folder: Path) -> None:
    """Compare with Python's own list of what a pickle names, as far as it can be read."""
    from modules.families.kinds.identify import identify_with_header
    from modules.formats.pickle_header import unsafe_names_of
    from tests.builders.fuzzing import names_of

    path = _write(folder, "m.ckpt", content)
    _inspect(path)
    _load(path)
    _kind, header = identify_with_header(path)
    is_called_safe = header is not None and header.container == "pickle" and not header.code
    if is_called_safe and not content.startswith(b"PK") and (unsafe := unsafe_names_of(names_of(content))):
        raise AssertionError(f"not reported: {unsafe}")


# -- folders, sidecars, metadata --------------------------------------------------------------------------------------

_FOLDER_FILES = ("model_index.json", "unet/config.json", "scheduler/scheduler_config.json", "config.json")


def _configs(folder: Path) -> list[bytes]:
    index = {
        "_class_name": "StableDiffusionPipeline",
        "unet": ["diffusers", "UNet2DConditionModel"],
        "vae": [None, None],
    }
    unet = {"in_channels": 4, "cross_attention_dim": 768, "block_out_channels": [8, 8], "use_linear_projection": True}
    scheduler = {"prediction_type": "v_prediction", "rescale_betas_zero_snr": True}
    xl = {"_class_name": "StableDiffusionXLPipeline", "force_zeros_for_empty_prompt": True}
    return [json.dumps(x).encode() for x in (index, {**index, **unet, **scheduler}, xl, {**xl, **unet})]


def _read_folder(content: bytes, folder: Path) -> None:
    from modules.estimate.architecture import architecture_of
    from modules.families.kinds.identify import identify
    from modules.formats.diffusers_folder import read_json
    from modules.system.errors import DarkroomError

    for name in _FOLDER_FILES:
        _write(folder, name, content)
    _inspect(folder)
    identify(folder / "unet")
    architecture_of(str(folder), "sd")
    with contextlib.suppress(DarkroomError):
        read_json(folder, "model_index.json")


def _sidecars(folder: Path) -> list[bytes]:
    return [
        b'model:\n  params:\n    parameterization: "v"\n    use_ztsnr: true\n',
        b"prediction_type: epsilon\n# VScaling\n",
    ]


def _read_sidecar(content: bytes, folder: Path) -> None:
    from modules.families.parts.single_file.prediction import read_sidecar

    _write(folder, "m.yaml", content)
    read_sidecar(folder / "m.safetensors")


def _read_metadata(content: bytes, folder: Path) -> None:
    from modules.config.imports.lora_metadata import config_of_lora

    config_of_lora(_write(folder, "m.safetensors", content))


def _lora_metadata(folder: Path) -> list[bytes]:
    gui = json.loads((_FIXTURES / "kohya" / "gui_lora.json").read_text())
    kohya = {f"ss_{k}": v if isinstance(v, str) else json.dumps(v) for k, v in gui.items()}
    kohya |= {
        "ss_network_args": '{"conv_dim": "4"}',
        "ss_bucket_info": "null",
        "ss_dataset_dirs": '{"a": {"n_repeats": 1}}',
    }
    ours = (_FIXTURES / "darkroom_1.json").read_text()
    theirs = (_FIXTURES / "onetrainer_11.json").read_text()
    return [_tensors({"a": (1,)}, m) for m in (kohya, {"darkroom_config": ours}, {"ot_config": theirs})]


# -- configs ----------------------------------------------------------------------------------------------------------


def _config_files(folder: Path) -> list[bytes]:
    files = [*sorted(_FIXTURES.glob("*.json")), *sorted((_FIXTURES / "onetrainer").glob("*_sparse.json"))]
    files += [*sorted(_PRESETS.rglob("*.json"))[:4], _FIXTURES / "kohya" / "gui_lora.json"]
    of_every_version = [onetrainer.aged(next(onetrainer.files([v]))[1], v) for v in range(onetrainer.NEWEST + 1)]
    return [*(f.read_bytes() for f in files), *(json.dumps(tree).encode() for tree in of_every_version)]


def _read_config(content: bytes, folder: Path) -> None:
    from modules.config.codec import encode
    from modules.config.imports.any_file import load_any

    json.dumps(encode(load_any(_write(folder, "config.json", content)).config))


def _queues(folder: Path) -> list[bytes]:
    from modules.config.schema import Config
    from trainer.run_queue.items import RunQueue

    queue = RunQueue().add("a", Config()).add("b", Config(), machine="box").with_after_failure("stop")
    return [json.dumps(q.to_json()).encode() for q in (queue, queue.begin(1).skip(1))]


def _read_queue(content: bytes, folder: Path) -> None:
    from modules.system.errors import DarkroomError
    from trainer.run_queue.file import QueueFile
    from trainer.run_queue.running import request_of

    with contextlib.suppress(DarkroomError):
        queue = QueueFile(_write(folder, "queue.json", content)).read()
        json.dumps([queue.to_json(), *(request_of(item).config.general.seed for item in queue.items)])


def _list_files(folder: Path) -> list[bytes]:
    ours = {"concepts_version": 2, "concepts": [{"name": "a", "path": "b"}], "samples": [{"prompt": "a"}]}
    names = ("onetrainer_concepts.json", "onetrainer_samples.json")
    return [json.dumps(ours).encode(), *((_FIXTURES / n).read_bytes() for n in names)]


def _read_list(content: bytes, folder: Path) -> None:
    from modules.config.codec import load_file

    _write(folder, "concepts.json", content)
    _write(folder, "samples.json", content)
    theirs = {"__version": 11, "concept_file_name": "concepts.json", "sample_definition_file_name": "samples.json"}
    load_file(_write(folder, "theirs.json", json.dumps(theirs).encode()))
    ours = {"darkroom_version": 7, "concepts_file": "concepts.json", "samples_file": "samples.json"}
    load_file(_write(folder, "ours.json", json.dumps(ours).encode()))


def _toml_files(folder: Path) -> list[bytes]:
    return [f.read_bytes() for f in sorted((_FIXTURES / "kohya").glob("*.toml"))]


def _read_toml(content: bytes, folder: Path) -> None:
    from modules.config.imports.any_file import load_any

    load_any(_write(folder, "config.toml", content))


def _yaml_files(folder: Path) -> list[bytes]:
    return [f.read_bytes() for f in sorted((_FIXTURES / "ai_toolkit").glob("*.yaml"))]


def _read_yaml(content: bytes, folder: Path) -> None:
    from modules.config.codec import encode
    from modules.config.imports.any_file import load_any

    json.dumps(encode(load_any(_write(folder, "config.yaml", content)).config))


# -- data -------------------------------------------------------------------------------------------------------------


def _images(folder: Path) -> list[bytes]:
    from PIL import Image

    found = []
    image = Image.linear_gradient("L").resize((24, 16))
    exif = Image.Exif()
    exif[0x0112] = 6
    options: list[tuple[str, str, dict[str, object]]] = [
        *(("PNG", mode, {}) for mode in ("L", "RGB", "RGBA", "P", "I;16", "1")),
        *(("TIFF", mode, {"compression": c}) for mode in ("L", "RGB", "F") for c in (None, "tiff_lzw", "jpeg")),
        *(
            ("JPEG", "RGB", {"exif": exif}),
            ("WEBP", "RGBA", {"lossless": True}),
            ("AVIF", "RGB", {}),
            ("BMP", "RGB", {}),
        ),
        *(("GIF", "P", {"save_all": True, "append_images": [image]}), ("JPEG", "CMYK", {"progressive": True})),
        ("PNG", "RGB", {"exif": exif, "save_all": True, "append_images": [image]}),
    ]
    for kind, mode, option in options:
        buffer = io.BytesIO()
        try:
            image.convert(mode if mode != "I;16" else "I").convert(mode).save(buffer, kind, **option)
        except (OSError, ValueError, KeyError):  # a build of Pillow without the format
            continue
        found.append(buffer.getvalue())
    return found


_CHUNKS = (
    b"IHDR",
    b"IDAT",
    b"IEND",
    b"eXIf",
    b"iTXt",
    b"zTXt",
    b"acTL",
    b"fcTL",
    b"iCCP",
    b"\xff\xd8",
    b"\xff\xc2",
    b"Exif\0\0",
)


def _read_image(content: bytes, folder: Path) -> None:
    from modules.data.buckets import ResizeCrop, Size
    from modules.data.captions.sources import CaptionOrigin
    from modules.data.images import BrokenImageError
    from modules.data.scan import scan_folder
    from modules.data.transforms.apply import load_pixels
    from modules.data.transforms.recipe import plain_recipe
    from ui.widgets.thumbnails import load_covering

    path = _write(folder, "i.png", content)
    found = scan_folder(folder, include_subfolders=False, captions=CaptionOrigin())
    if len(found.images) + len(found.skipped) != 1:
        raise AssertionError("neither an image nor skipped")
    with contextlib.suppress(BrokenImageError):
        load_pixels(path, plain_recipe(ResizeCrop(Size(16, 16), Size(16, 16), 0, 0)))
    with contextlib.suppress(OSError, ValueError):
        load_covering(path, 16, 16)


def _captions(folder: Path) -> list[bytes]:
    return ["a photo of a cat\na cat, sitting\n\n".encode(c) for c in ("utf-8", "utf-8-sig", "utf-16", "cp1252")]


def _read_captions(content: bytes, folder: Path) -> None:
    from modules.data.captions.sources import CaptionOrigin, read_captions

    _write(folder, "i.txt", content)
    for caption in read_captions(folder / "i.png", CaptionOrigin()).texts:
        caption.encode()


def _shards(folder: Path) -> list[bytes]:
    image = _images(folder)[0]
    made = []
    for format_ in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=format_) as tar:
            for name, content in (("0.png", image), ("0.txt", b"a cat"), (f"{'long' * 20}/1.json", b'{"text": "a"}')):
                member = tarfile.TarInfo(name)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
        made.append(buffer.getvalue())
    return made


def _read_shard(content: bytes, folder: Path) -> None:
    from modules.data.captions.sources import CaptionOrigin
    from modules.data.images import BrokenImageError, open_image
    from modules.data.scan import scan_folder

    path = _write(folder, "s.tar", content)
    for found in scan_folder(path, include_subfolders=True, captions=CaptionOrigin()).images:
        with contextlib.suppress(BrokenImageError), open_image(found.path) as image:
            image.load()


def _tables(folder: Path) -> list[bytes]:
    import pyarrow
    from pyarrow import parquet

    rows = [{"image": {"bytes": _images(folder)[0], "path": "a.png"}, "text": "a cat"}]
    path = folder / "made.parquet"
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    content = path.read_bytes()
    path.unlink()
    return [content]


def _arrow_files(folder: Path) -> list[bytes]:
    import pyarrow

    rows = [{"image": {"bytes": _images(folder)[0], "path": "a.png"}, "text": "a cat"}] * 3
    table = pyarrow.Table.from_pylist(rows)
    made = []
    for new in (pyarrow.ipc.new_stream, pyarrow.ipc.new_file):
        sink = io.BytesIO()
        with new(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=2)
        made.append(sink.getvalue())
    return made


def _read_table(content: bytes, folder: Path, name: str = "t.parquet") -> None:
    from modules.data.captions.sources import CaptionOrigin
    from modules.data.images import BrokenImageError, open_image
    from modules.data.scan import scan_folder

    path = _write(folder, name, content)
    for found in scan_folder(path, include_subfolders=True, captions=CaptionOrigin(source="metadata")).images:
        with contextlib.suppress(BrokenImageError), open_image(found.path) as image:
            image.load()


def _read_arrow(content: bytes, folder: Path) -> None:
    _read_table(content, folder, "t.arrow")


def _metadata_files(folder: Path) -> list[bytes]:
    return [
        b'{"file_name": "a.png", "text": "a cat"}\n{"file_name": "b.png", "text": ["a", "b"]}\n',
        b"file_name,text\na.png,a cat\n",
        b'{"a": {"caption": "a cat", "tags": "cat"}}',
    ]


def _read_metadata_file(content: bytes, folder: Path) -> None:
    from modules.data.metadata import read_metadata

    for suffix in (".jsonl", ".csv", ".tsv", ".json"):
        read_metadata(_write(folder, f"m{suffix}", content), ())


def _pair_files(folder: Path) -> list[bytes]:
    import pyarrow
    from pyarrow import parquet

    image = _images(folder)[0]
    rows = [{"jpg_0": image, "jpg_1": image, "label_0": 1.0, "has_label": True, "caption": "a cat"}]
    path = folder / "made.parquet"
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    table = path.read_bytes()
    path.unlink()
    return [
        table,
        b'{"chosen": "a.png", "rejected": "b.png", "prompt": "a cat"}\n{"chosen": "b.png", "rejected": "a.png"}\n',
        b"image_0,image_1,label_0,label_1,caption\na.png,b.png,0.5,0.5,a cat\na.png,b.png,0,1,a dog\n",
    ]


def _read_pairs(content: bytes, folder: Path) -> None:
    from modules.data.captions.sources import CaptionOrigin
    from modules.data.pairs import fingerprint_of_source, scan_pairs

    for suffix in (".jsonl", ".csv", ".json", ".parquet"):
        path = _write(folder, f"p{suffix}", content)
        scan_pairs(path, captions=CaptionOrigin(source="metadata"))
        fingerprint_of_source(path, include_subfolders=False, holds_pairs=True)


def _tokenizer_files(folder: Path) -> list[bytes]:
    vocabulary = {"<|startoftext|>": 0, "<|endoftext|>": 1, "a</w>": 2, "b": 3, "ab</w>": 4}
    settings = {"pad_token": {"content": "!"}, "added_tokens_decoder": {"1": {"content": "<|endoftext|>"}}}
    return [json.dumps(vocabulary).encode(), json.dumps(settings).encode(), json.dumps({"pad_token": "a"}).encode()]


def _read_tokenizer(content: bytes, folder: Path) -> None:
    from modules.families.parts.clip_tokens import load_clip_tokenizer
    from modules.system.errors import DarkroomError

    for name in ("vocab.json", "tokenizer_config.json", "special_tokens_map.json"):
        _write(folder, name, content)
    _write(folder, "merges.txt", b"#version: 0.2\na b</w>\n" + content)
    with contextlib.suppress(DarkroomError):
        load_clip_tokenizer(folder)


def _t5_files(folder: Path) -> list[bytes]:
    from tests.builders.t5 import pieces, sentencepiece_model, write_t5_tokenizer

    write_t5_tokenizer(folder / "tokenizer")
    whole = (folder / "tokenizer" / "tokenizer.json").read_bytes()
    return [whole, sentencepiece_model(pieces()), sentencepiece_model(pieces(), normalization=b"\4\0\0\0abcd")]


def _read_t5_tokenizer(content: bytes, folder: Path) -> None:
    from modules.families.parts.t5_tokens import load_t5_tokenizer
    from modules.system.errors import DarkroomError

    for name in ("tokenizer.json", "spiece.model"):
        with contextlib.suppress(DarkroomError):
            load_t5_tokenizer(_write(folder / name, name, content).parent).read("a red disc", 8)


# -- our own files, which others may have changed ---------------------------------------------------------------------


def _events(folder: Path) -> list[bytes]:
    from trainer import commands, event_lines, events

    step = events.StepFinished(1, 2, 1, 4, 1, 8, 0.5, float("nan"), 1.0, 2.0, None, {"unet": 1e-4}, ("unet",))
    lines = [event_lines.to_line(event) for event in (step, events.PhaseChanged("training"))]
    lines.append(commands.to_line(commands.Stop()))
    return [line.encode() for line in lines]


def _read_events(content: bytes, folder: Path) -> None:
    from trainer import commands
    from trainer.run_folder.event_log import read_events

    _write(folder, "events.jsonl", content)
    list(read_events(folder))
    commands.from_line(content.decode("utf-8", "replace"))


def _manifests(folder: Path) -> list[bytes]:
    manifest = {
        "format": 1,
        "step": 3,
        "epoch": 1,
        "created": "2026-01-01T00:00:00",
        "written_us": 1,
        "files": {"a": {"bytes": 1, "sha256": "x"}},
    }
    state = {"step": 3, "epoch": 1, "counters": {"step": 1}, "optimizer_values": {}, "validation": {}, "rewards": {}}
    return [json.dumps(manifest).encode(), json.dumps({**manifest, **state, "files": {}}).encode()]


def _read_manifest(content: bytes, folder: Path) -> None:
    from datetime import datetime

    from modules.system.errors import DarkroomError
    from trainer.run.checkpoint import read_state
    from trainer.run_folder.backup import find_backup, list_backups, make_newest, verify

    backup = folder / "run" / "backup" / "step-3"
    _write(backup, "manifest.json", content)
    _write(backup, "state.json", content)
    list_backups(folder / "run")
    for action in (lambda: verify(find_backup(backup)), lambda: read_state(backup)):
        with contextlib.suppress(DarkroomError):
            action()
    if found := list_backups(folder / "run"):
        make_newest(found[0], now=datetime(2026, 1, 1))


def _sharded_files(folder: Path) -> list[bytes]:
    import torch

    from trainer.run_folder.shards import Rows, write_shards

    shards = folder / "made"
    write_shards(shards, {"weights/a": Rows(torch.ones(2, 3), 1, 3)}, {"weights/b": torch.ones(())}, process=0)
    write_shards(shards, {"weights/a": Rows(torch.ones(1, 3), 0, 1)}, {}, process=1)
    return [file.read_bytes() for file in sorted((shards / "shards").iterdir())]


def _read_sharded(content: bytes, folder: Path) -> None:
    from modules.system.errors import DarkroomError
    from trainer.run_folder.shards import read_whole

    _write(folder / "sharded" / "shards", "process-00000.safetensors", content)
    with contextlib.suppress(DarkroomError):
        read_whole(folder / "sharded", "weights")


def _old_shards(folder: Path) -> list[bytes]:
    import warnings

    import torch
    from torch.distributed.checkpoint.state_dict_saver import save

    warnings.simplefilter("ignore")
    save({"weights/a": torch.ones(3, 2), "weights/b": torch.ones(())}, checkpoint_id=folder / "old" / "shards")
    whole = (folder / "old" / "shards" / ".metadata").read_bytes()
    planted = hostile.planted(folder / "canary")
    return [whole, *(b"\x80\x04" + program + b"0" + whole[2:] for program in planted.values())]


def _read_old_shards(content: bytes, folder: Path) -> None:
    from modules.system.errors import DarkroomError
    from trainer.run_folder.shards import read_whole

    _write(folder / "old" / "shards", ".metadata", content)
    with contextlib.suppress(DarkroomError):
        read_whole(folder / "old", "weights")


def _patterns(folder: Path) -> list[bytes]:
    texts = (r"^(\w+\.)+to_[qk]$", "(a+)+b", r"(?:\w+\.?)+!", "a{2,5}[^x-z]*?(?=b)", r"(?P<n>a|b)(?P=n)", "{a|{b|c}} d")
    return [text.encode() for text in texts]


def _read_pattern(content: bytes, folder: Path) -> None:
    import random

    from modules.data.captions.operations import has_single_brace, resolve_wildcards
    from modules.data.wildcards import expand
    from modules.system.errors import DarkroomError
    from modules.system.patterns import PatternError, compiled_pattern, fault_of_pattern

    text = content.decode("utf-8", "replace")
    if not fault_of_pattern(text):
        with contextlib.suppress(PatternError):
            compiled_pattern(text).matches("a" * 50)
    has_single_brace(text)
    resolve_wildcards(text, random.Random(1))
    with contextlib.suppress(DarkroomError):
        expand(text, seed=1, folder=folder)


def _secrets(folder: Path) -> list[bytes]:
    ours = {"huggingface_token": "hf_x", "cloud": {"host": "h", "user": "u", "password": "p", "port": "22"}}
    return [json.dumps(x).encode() for x in (ours, {"secrets": ours}, {"x": "y"})]


def _read_secrets(content: bytes, folder: Path) -> None:
    from modules.rewards.user_code_file import approved_hashes
    from modules.system.errors import DarkroomError
    from modules.system.secrets import Secrets
    from modules.system.secrets_file import import_secrets, load_secrets

    file = _write(folder, "secrets.json", content)
    approved_hashes(file)
    with contextlib.suppress(DarkroomError):
        import_secrets(file, Secrets())
    load_secrets(file)


def _sessions(folder: Path) -> list[bytes]:
    session = {
        "config": json.loads((_FIXTURES / "darkroom_1.json").read_text()),
        "source": "a.json",
        "ui": {"zoom": 1.0},
    }
    return [json.dumps(session).encode()]


def _read_session(content: bytes, folder: Path) -> None:
    from ui.app.session_files import load_session

    load_session(_write(folder, "session.json", content))


def _recipes(folder: Path) -> list[bytes]:
    from modules.config.codec import encode
    from modules.config.schema import Config
    from trainer.run_folder.recipe import ConceptImages, Machine, ReadFile, Recipe, Result, write_recipe

    images = ConceptImages("zog", "training", 1, "ab", images={"a.png": "11 22"})
    whole = Recipe(
        encode(Config()),
        {"torch": "2.13.0"},
        Machine("cpu", "a processor", "Linux", num_threads=1),
        (ReadFile("model.base_model", "unet/model.safetensors", 10, "aa"),),
        (images,),
        result=Result("lora.safetensors", 3, 2, "ff"),
    )
    write_recipe(folder, whole)
    return [(folder / "recipe.json").read_bytes()]


def _read_recipe(content: bytes, folder: Path) -> None:
    from modules.system.errors import DarkroomError
    from trainer.cli.recipes import read_repeat
    from trainer.run_folder.differences import differences

    with contextlib.suppress(DarkroomError):
        todo = read_repeat(str(_write(folder, "recipe.json", content)), ())
        list(differences(todo.recipe, todo.recipe))
        if todo.config.output.destination != f"models/{Path(todo.config.output.destination).name}":
            raise AssertionError(f"it would write to {todo.config.output.destination}")


READERS = (
    Reader("safetensors", _safetensors, of_safetensors, _read_safetensors),
    Reader("index of shards", _indices, of_json(["../x.safetensors", "/etc/passwd", "x.bin", 3]), _read_index),
    Reader("GGUF", _gguf_files, of_bytes([b"GGUF", b"\x09\x00\x00\x00", b"\xff" * 8, b"\x00" * 8]), _read_gguf),
    Reader("pickle", _pickles, _mutate_pickle, _read_pickle),
    Reader("PEFT config", _peft_configs, of_json(["to_q", "alpha", 10**400, {"x": 1}]), _read_peft_config),
    Reader("diffusers folder", _configs, of_json([[None, None], 9, 1024, [1, 2]]), _read_folder),
    Reader("sidecar", _sidecars, of_bytes([b"\n", b":", b" ", b"ztsnr: true"]), _read_sidecar),
    Reader("LoRA metadata", _lora_metadata, of_safetensors, _read_metadata),
    Reader("config", _config_files, of_json(["ADAMW", "LORA", "SAMPLE", "../x", {"__version": 3}]), _read_config),
    Reader("queue", _queues, of_json(["waiting", "running", 10**400, "box", {"x": 1}]), _read_queue),
    Reader("recipe", _recipes, of_json(["../x", 10**400, {"x": 1}, "LORA"]), _read_recipe),
    Reader("list files", _list_files, of_json(["a.png", 3]), _read_list),
    Reader("TOML", _toml_files, of_bytes([b"[", b"]", b"=", b'"""', b"[[datasets]]\n", b"1e999", b"nan"]), _read_toml),
    Reader(
        "YAML", _yaml_files, of_bytes([b"- ", b": ", b"*a", b"&a ", b"<<: ", b"!!set", b"[", b"}", b"~"]), _read_yaml
    ),
    Reader("image", _images, of_bytes(_CHUNKS), _read_image),
    Reader("tar shard", _shards, of_bytes([b"ustar", b"\x00" * 512, b"7777777", b"x", b"L"]), _read_shard),
    Reader("parquet", _tables, of_bytes([b"PAR1", b"\x15", b"\xff" * 8]), _read_table),
    Reader("arrow", _arrow_files, of_bytes([b"ARROW1", b"\xff" * 4, b"\xff" * 8, b"\x00" * 8]), _read_arrow),
    Reader("preference pairs", _pair_files, of_bytes([b'"', b",", b"\n", b"0.5", b"\x00", b"PAR1"]), _read_pairs),
    Reader("metadata file", _metadata_files, of_bytes([b'"', b",", b"\n", b"[" * 5000, b"\x00"]), _read_metadata_file),
    Reader("captions", _captions, of_bytes([b"\xff\xfe", b"\x00", b"\n"]), _read_captions),
    Reader("tokenizer", _tokenizer_files, of_json(["<|endoftext|>", 3]), _read_tokenizer),
    Reader("T5 tokenizer", _t5_files, of_bytes([b"\x0a", b"\x15", b"\xff" * 9, b'"', b"</s>"]), _read_t5_tokenizer),
    Reader("events", _events, of_json(["StepDone", "Stop", 10**30]), _read_events),
    Reader("backup", _manifests, of_json(["step-3", "2026-01-01"]), _read_manifest),
    Reader("shards", _sharded_files, of_safetensors, _read_sharded),
    Reader("old shards", _old_shards, of_bytes(_TOKENS), _read_old_shards),
    Reader(
        "pattern", _patterns, of_bytes([b"(", b")", b"*", b"+", b"{9}", b"{1,9}", b"[", b"|", b"\\"]), _read_pattern
    ),
    Reader("secrets", _secrets, of_json(["hf_y"]), _read_secrets),
    Reader("session", _sessions, of_json(["LORA"]), _read_session),
)
