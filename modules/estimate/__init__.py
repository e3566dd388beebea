"""What a run will take on its device, worked out from shapes alone: nothing is loaded, and no torch is needed."""
