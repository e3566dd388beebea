"""What a run trains, in words that a user knows."""

from __future__ import annotations

import pytest

from trainer.preflight.trained_layers import TrainedPart, kind_of_layer


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q", "self-attention"),
        ("mid_block.attentions.0.transformer_blocks.0.attn2.to_out.0", "cross-attention"),
        ("up_blocks.1.attentions.2.transformer_blocks.0.ff.net.0.proj", "feed-forward"),
        ("down_blocks.0.attentions.0.proj_in", "projection"),
        ("down_blocks.0.attentions.0.transformer_blocks.0.norm3", "normalization"),
        ("down_blocks.0.resnets.0.conv1", "convolution"),
        ("down_blocks.0.resnets.0.time_emb_proj", "timestep embedding"),
        ("time_embedding.linear_1", "timestep embedding"),
        ("text_model.encoder.layers.0.self_attn.q_proj", "self-attention"),
        ("encoder.layers.3.mlp.fc1", "feed-forward"),
        ("decoder.mid_block.attentions.0.to_q", "self-attention"),
        ("text_model.embeddings.token_embedding", "embedding"),
        ("layers.3.attention.to_q", "attention"),
        ("noise_refiner.0.feed_forward.w1", "feed-forward"),
        ("layers.3.adaLN_modulation.0", "modulation"),
        ("t_embedder.mlp.0", "timestep embedding"),
        ("cap_embedder.1", "embedding"),
        ("something.new", "other"),
    ],
)
def test_every_layer_belongs_to_a_kind(name: str, kind: str) -> None:
    assert kind_of_layer(name) == kind


def test_a_trained_part_is_said_without_names_of_layers() -> None:
    names = ("a.attn1.to_q", "a.attn1.to_k", "a.ff.net.2")
    assert str(TrainedPart("UNet", names, 116_224)) == (
        "Trains 3 layers of UNet with 116,224 weights: 2 self-attention, 1 feed-forward."
    )
