"""A recipe rehearsed before a GPU is rented: its own classes and layout at toy size, on any computer."""
