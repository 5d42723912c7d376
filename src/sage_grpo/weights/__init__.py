"""Which weights are trained and how they fit into memory: adapters, precision, recomputation, optimizers."""
