"""What a run leaves behind: numbers, videos, the environment it ran in, and its progress on the screen."""
