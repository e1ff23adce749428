"""What is to be run: a run file and options, as a checked list of runs."""
