"""The demo model: a tiny Stable Diffusion model, trained from scratch on images drawn by this package."""
