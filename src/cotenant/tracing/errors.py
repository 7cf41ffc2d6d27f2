"""The error of an operation that the fake GPU cannot follow. Needs no torch."""


class Untraceable(Exception):
    """Names the operation; where in the script it was called is told by the traceback.

    Not a `NotImplementedError`, which libraries catch to go another way, as parametrizations of PyTorch do.
    """
