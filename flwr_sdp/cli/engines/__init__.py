"""What runs are started on, from one process to a Ray cluster, and how they are followed."""
