"""Models, optimizers and the loop around them, as a trace follows them."""
