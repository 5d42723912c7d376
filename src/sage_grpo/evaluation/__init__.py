"""The comparison of checkpoints: videos of the same prompts and seeds, scores, paired differences and tables."""
