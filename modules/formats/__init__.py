"""Files that others read and write: safetensors, kohya and diffusers forms, metadata."""
