"""A recipe laid out before a GPU is rented: memory, work, time, cost."""
