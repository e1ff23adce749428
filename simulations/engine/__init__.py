"""What carries messages between the server and the simulated clients."""
