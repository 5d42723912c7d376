"""The audit of scorers: how scores can be gamed, found by comparing clips with degraded copies of themselves."""
