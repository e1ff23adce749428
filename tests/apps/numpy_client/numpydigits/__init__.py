"""Softmax regression in NumPy, behind a NumPyClient, trained on handwritten digits."""
