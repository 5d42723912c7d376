"""The mathematics: pure functions on tensors, each tagged with the equation it implements."""
