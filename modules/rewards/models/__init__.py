"""The rewards that need torch themselves: what loads a model, or runs a function of the user's own."""
