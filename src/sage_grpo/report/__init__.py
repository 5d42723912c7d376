"""Pictures and pages made from results: reports of runs, charts, heat maps and animations."""
