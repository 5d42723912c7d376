"""Run folders as plain data: files, logs, alarms and locks, and the removal of secrets. Nothing here needs torch."""
