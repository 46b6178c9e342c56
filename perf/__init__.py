"""Speed measurements: against other ways of doing the same, and of the modes against each other."""
