"""The laboratory: a small real video generator, its rewards and the experiments that settle claims."""
