"""Stochastic gradient studies in which every user is asked once, one after the other.

Messages between a server and 100,000 clients that answer once would say nothing more, so these run
in NumPy, a whole batch of trials at a time: ``python -m simulations.streams RUN.toml OUTPUT_DIR``.
"""
