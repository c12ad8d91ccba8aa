"""What can be said about a kernel without running it."""
