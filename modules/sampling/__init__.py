"""From noise to images: the denoising loop, the samplers, and rollouts with a graph."""
