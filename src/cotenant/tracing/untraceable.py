"""The error of an operation that the fake GPU cannot follow. Needs no torch."""


class Untraceable(NotImplementedError):
    """Names the operation; where in the script it was called is told by the traceback."""
