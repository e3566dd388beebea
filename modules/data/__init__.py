"""Images and captions, from folders to batches. Torch-free up to the batch: Pillow and numpy."""
