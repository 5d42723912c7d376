"""What of a model is trained and how it fits into memory: adapters, precision, recomputation, optimizers."""
