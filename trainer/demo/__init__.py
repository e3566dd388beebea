"""The demo model: a tiny Stable Diffusion that is trained from scratch on images drawn here."""
