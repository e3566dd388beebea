"""The training methods, one file each: they turn a batch into a loss."""
