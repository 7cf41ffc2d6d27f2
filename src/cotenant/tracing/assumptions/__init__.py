"""What a trace assumes where values are not computed: known values, booleans, loops, routing, generated tokens."""
