"""The world of shapes with sound: the higher a shape is, the higher it sounds."""
