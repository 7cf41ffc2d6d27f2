"""Training jobs written as traces, without a script and without torch."""
