"""Mends of libraries around torch, applied as a script imports them."""
