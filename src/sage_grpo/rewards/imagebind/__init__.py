"""ImageBind, a scorer of how well picture and sound match: inputs, network and conversion of the checkpoint."""
