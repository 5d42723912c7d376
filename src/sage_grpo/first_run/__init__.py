"""The first run on a new machine: what it has, whether its attention keeps our rules, and how fast it is."""
