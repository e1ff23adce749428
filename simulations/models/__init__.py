"""The networks, and what trains and evaluates them."""
