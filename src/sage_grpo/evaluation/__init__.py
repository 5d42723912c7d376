"""The comparison of checkpoints: videos of the same prompts and seeds, their scores, paired differences and tables."""
