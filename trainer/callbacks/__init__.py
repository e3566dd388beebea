"""What is due now and then, one file each."""
