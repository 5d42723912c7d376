"""The laboratory: small real video generators, their rewards, and comparisons of before and after training."""
