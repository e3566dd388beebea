"""A page in the browser over the folders of runs: progress, samples, commands, the queue, choices between images."""
