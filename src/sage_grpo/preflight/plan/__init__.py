"""Plans of a recipe before a GPU is rented: its memory, work, time and cost."""
