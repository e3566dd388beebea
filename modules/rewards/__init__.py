"""Rewards: what rates the pictures that a reward method paints."""
