"""The memory walk of a `UNet2DConditionModel` of SD and SDXL (Rombach et al. 2022), as diffusers computes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modules.memory.tape import Array
from modules.memory.walk import Walk

Config = Mapping[str, Any]


def unet_pass(
    walk: Walk, config: Config, *, batch: int, latents: tuple[int, int], tokens: int, text: Array | None
) -> Array:
    """Return the output for noisy latents of a height and width; `text` are the states, new arrays where None."""
    width, height = latents[1], latents[0]
    noisy = walk.new((batch, int(config["in_channels"]), height, width))
    states = text or walk.new((batch, tokens, int(config["cross_attention_dim"])))
    return walk.whole(lambda x, y: _Unet(walk, config).run(x, walk.to(y, walk.plan.weight_bytes)), noisy, states)


class _Unet:
    """One pass; `states` and the time embedding are the same for every block."""

    def __init__(self, walk: Walk, config: Config) -> None:
        self.walk, self.config = walk, config
        self.channels = [int(n) for n in config["block_out_channels"]]
        self.states: Array
        self.time: Array

    def run(self, noisy: Array, states: Array) -> Array:
        """Return the prediction for noisy latents BCHW and text states BLC, and record the memory of the pass."""
        walk, first = self.walk, self.channels[0]
        self.states = states
        self.time = self._embedding(noisy.shape[0])
        x = walk.conv("conv_in", noisy, first)
        skips = [x]
        for level, kind in enumerate(self.config["down_block_types"]):
            x = self._down(x, skips, level, kind)
        x = self._resnet("mid_block.resnets.0", x, self.channels[-1])
        x = self._attention("mid_block.attentions.0", x, len(self.channels) - 1)
        x = self._resnet("mid_block.resnets.1", x, self.channels[-1])
        for index, kind in enumerate(self.config["up_block_types"]):
            x = self._up(x, skips, index, kind)
        x = walk.activation(walk.group_norm("conv_norm_out", x))
        return walk.conv("conv_out", x, int(self.config["out_channels"]))

    def _embedding(self, batch: int) -> Array:
        walk, config = self.walk, self.config
        wide = 4 * self.channels[0]
        time = self._two_layers("time_embedding", walk.new((batch, self.channels[0])), wide)
        if config.get("addition_embed_type") != "text_time":
            return time
        embedding = walk.new((batch, int(config["projection_class_embeddings_input_dim"])))
        return walk.add(time, self._two_layers("add_embedding", embedding, wide))

    def _two_layers(self, path: str, x: Array, width: int) -> Array:
        walk = self.walk
        return walk.linear(f"{path}.linear_2", walk.activation(walk.linear(f"{path}.linear_1", x, width)), width)

    def _down(self, x: Array, skips: list[Array], level: int, kind: str) -> Array:
        path = f"down_blocks.{level}"
        for index in range(per_level(self.config, "layers_per_block", level)):
            x = self._resnet(f"{path}.resnets.{index}", x, self.channels[level])
            if kind.startswith("CrossAttn"):
                x = self._attention(f"{path}.attentions.{index}", x, level)
            skips.append(x)
        if level < len(self.channels) - 1:
            x = self.walk.conv(f"{path}.downsamplers.0.conv", x, self.channels[level], stride=2)
            skips.append(x)
        return x

    def _up(self, x: Array, skips: list[Array], index: int, kind: str) -> Array:
        level = len(self.channels) - 1 - index
        path = f"up_blocks.{index}"
        for number in range(per_level(self.config, "layers_per_block", level) + 1):
            x = self.walk.cat(x, skips.pop())
            x = self._resnet(f"{path}.resnets.{number}", x, self.channels[level])
            if kind.startswith("CrossAttn"):
                x = self._attention(f"{path}.attentions.{number}", x, level)
        if level > 0:
            x = self.walk.conv(f"{path}.upsamplers.0.conv", self.walk.upsampled(x), self.channels[level])
        return x

    def _resnet(self, path: str, x: Array, width: int) -> Array:
        return self.walk.block(path, lambda a, time: resnet(self.walk, path, a, width, time=time), x, self.time)

    def _attention(self, path: str, x: Array, level: int) -> Array:
        walk, residual = self.walk, x
        batch, channels, height, width = x.shape
        is_linear = bool(self.config.get("use_linear_projection"))
        x = walk.group_norm(f"{path}.norm", x)
        if not is_linear:
            x = walk.conv(f"{path}.proj_in", x, channels, kernel=1)
        x = x.view(batch, height * width, channels)
        if is_linear:
            x = walk.linear(f"{path}.proj_in", x, channels)
        heads = per_level(self.config, "attention_head_dim", level)
        for index in range(per_level(self.config, "transformer_layers_per_block", level)):
            name = f"{path}.transformer_blocks.{index}"

            def run(x: Array, states: Array, name: str = name) -> Array:
                return self._transformer(name, x, states, heads)

            x = walk.block(name, run, x, self.states, is_transformer=True)
        if is_linear:
            x = walk.linear(f"{path}.proj_out", x, channels)
        x = x.view(batch, channels, height, width)
        if not is_linear:
            x = walk.conv(f"{path}.proj_out", x, channels, kernel=1)
        return walk.add(x, residual)

    def _transformer(self, path: str, x: Array, states: Array, heads: int) -> Array:
        walk, width = self.walk, x.shape[-1]
        normed = walk.layer_norm(f"{path}.norm1", x)
        x = walk.add(x, self._attend(f"{path}.attn1", normed, normed, heads))
        x = walk.add(x, self._attend(f"{path}.attn2", walk.layer_norm(f"{path}.norm2", x), states, heads))
        inner = walk.linear(f"{path}.ff.net.0.proj", walk.layer_norm(f"{path}.norm3", x), 8 * width)
        half = inner.view(*inner.shape[:-1], 4 * width)  # GEGLU: one half times the activation of the other
        inner = walk.product(half, walk.activation(half))
        del half
        return walk.add(x, walk.linear(f"{path}.ff.net.2", inner, width))

    def _attend(self, path: str, x: Array, other: Array, heads: int) -> Array:
        walk, width = self.walk, x.shape[-1]
        query = walk.linear(f"{path}.to_q", x, width, bias=False)
        key, value = (walk.linear(f"{path}.to_{n}", other, width, bias=False) for n in "kv")
        del x
        attended = walk.attention(query, key, value, heads=heads)
        return walk.copy(walk.linear(f"{path}.to_out.0", attended, width))


def resnet(walk: Walk, path: str, x: Array, width: int, *, time: Array | None = None) -> Array:
    """A residual block (`ResnetBlock2D`), with a time embedding where there is one."""
    inside = walk.conv(f"{path}.conv1", walk.activation(walk.group_norm(f"{path}.norm1", x)), width)
    if time is not None:
        embedding = walk.linear(f"{path}.time_emb_proj", walk.activation(time), width)
        inside = walk.add(inside, embedding)
    inside = walk.activation(walk.group_norm(f"{path}.norm2", inside))
    inside = walk.conv(f"{path}.conv2", inside, width)
    if x.shape[1] != width:
        x = walk.conv(f"{path}.conv_shortcut", x, width, kernel=1)
    return walk.copy(walk.add(x, inside))


def per_level(config: Config, name: str, level: int) -> int:
    """Return a level's value of a setting that is one number for all levels, or one for each."""
    value = config.get(name) or 1
    return int(value[level]) if isinstance(value, list | tuple) else int(value)
