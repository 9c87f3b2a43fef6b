"""Sources -> candidates -> features -> ranker -> a model folder like any other."""
