"""What a file or folder can be, one file per kind: how it is recognised, what can be done with it, who loads it."""
