"""The laboratory's world of shapes with sound: the higher in the picture a shape is, the higher its tone."""
