"""The runs of all workspaces, as the Run history page shows them. No Tk."""
