"""The start of a script without this program: imports, a model, a LoRA, one step.

`python -m benchmarks.bare_start MODEL` prints the loss of the step.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from diffusers import AutoencoderKL, UNet2DConditionModel
from peft import LoraConfig, inject_adapter_in_model
from transformers import CLIPTextModel


def main(model: Path) -> None:
    """Load a diffusers folder, encode an image and a prompt, and train one step."""
    vae = AutoencoderKL.from_pretrained(model / "vae", use_safetensors=True).requires_grad_(False)
    text_encoder = CLIPTextModel.from_pretrained(model / "text_encoder", use_safetensors=True, trust_remote_code=False)
    text_encoder.requires_grad_(False)
    unet = UNet2DConditionModel.from_pretrained(model / "unet", use_safetensors=True).requires_grad_(False)
    inject_adapter_in_model(LoraConfig(r=8, target_modules=["to_q", "to_k", "to_v", "to_out.0"]), unet)
    optimizer = torch.optim.AdamW([p for p in unet.parameters() if p.requires_grad], lr=1e-4)
    with torch.no_grad():
        latents = vae.encode(torch.zeros(12, 3, 64, 64)).latent_dist.mean
        states = text_encoder(torch.zeros(12, 77, dtype=torch.int64)).last_hidden_state
    loss = torch.nn.functional.mse_loss(unet(latents, torch.full((12,), 500), states).sample, latents)
    loss.backward()
    optimizer.step()
    sys.stdout.write(f"{loss.item()}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
