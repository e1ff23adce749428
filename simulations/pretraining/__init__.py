"""Pretraining: without privacy, on public data, what private runs then refit."""
