"""The first base of the world of shapes, on which studies were made that have not been repeated on today's base."""
