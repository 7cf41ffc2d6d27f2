"""The small process around every attempt: standard library only, imported by nobody."""
