"""What the records mean and what to do about it."""
