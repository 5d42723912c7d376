"""How scores are gamed: clips against spoilt copies of themselves."""
