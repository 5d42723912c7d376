"""A run folder as plain data: its names, its log, its alarms. Nothing here needs torch."""
