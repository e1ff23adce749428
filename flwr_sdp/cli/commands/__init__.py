"""What each command does: one file a command, named as the command."""
