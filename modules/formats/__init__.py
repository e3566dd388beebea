"""File formats shared with other programs: safetensors, kohya and diffusers layouts, metadata."""
