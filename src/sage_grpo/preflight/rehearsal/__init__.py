"""Rehearsals before a GPU is rented: a recipe's own classes and layout at toy size, on any computer."""
