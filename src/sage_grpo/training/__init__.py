"""Training: the trainer, the functions that build a recipe's objects, and the callbacks of a run."""
