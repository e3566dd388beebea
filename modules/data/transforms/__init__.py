"""From a file to pixels of the size that is trained at."""
