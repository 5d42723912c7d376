"""A search for good settings by training runs: first many short ones, then fewer longer ones, one of full length."""
