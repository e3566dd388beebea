"""Images and captions, from folders to batches. Everything up to the batch uses Pillow and numpy."""
