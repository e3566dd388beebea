"""The runs of all workspaces, as the Runs page shows them. No Tk."""
