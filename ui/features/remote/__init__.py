"""Other machines that runs are trained on over SSH: the list, their check, and the choice for the next run."""
