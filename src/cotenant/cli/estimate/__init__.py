"""`cotenant estimate`: its options, and its answer as text, JSON and reports."""
