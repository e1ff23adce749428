"""A model of 13 MB, for a test of memory."""
