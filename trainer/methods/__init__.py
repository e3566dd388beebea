"""The training methods, which turn a batch into a loss, and the parts that several of them share."""
