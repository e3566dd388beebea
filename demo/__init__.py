"""The demo model with its images and prompts, and the package that made them."""
