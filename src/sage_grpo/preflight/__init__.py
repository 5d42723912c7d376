"""Before a run: its plan, its rehearsal at toy size, and the first run on a new machine."""
