"""Studies that train many small models. The documentation quotes their results. They are not part of the package."""
