"""A service that scores videos for training runs: scorers behind an HTTP gate."""
