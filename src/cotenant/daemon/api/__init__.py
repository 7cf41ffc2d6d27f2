"""What clients may ask of the daemon, and what they are answered."""
