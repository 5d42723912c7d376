"""Training: the trainer a user meets, what builds a recipe's objects, what hangs on a run."""
