"""The updates of weights in a step: sliced, through master weights, inside the backward pass, limited in norm."""
