"""Logistic regression over devices that send private reports only."""
