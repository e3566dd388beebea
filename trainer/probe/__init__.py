"""Short measured searches on real steps: the largest micro-batch that fits, and a range test of the learning rate."""
