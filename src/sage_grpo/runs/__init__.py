"""Read a run folder as plain data: the names of its files, its log, its alarms. Nothing here needs torch."""
