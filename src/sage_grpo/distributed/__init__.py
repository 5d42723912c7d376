"""Where things run: devices, and later the processes that share a run."""
