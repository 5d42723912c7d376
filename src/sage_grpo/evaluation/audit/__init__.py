"""How scores are gamed: clips against degraded copies of themselves."""
