"""Studies that train many small models, and the records that the documentation quotes. Not part of the package."""
