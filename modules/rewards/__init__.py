"""Rewards: what rates the images that a reward method paints."""
