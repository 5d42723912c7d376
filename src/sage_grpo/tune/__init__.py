"""A search for settings: many short runs, fewer longer ones, one whole."""
