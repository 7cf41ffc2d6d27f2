"""The error of an operation that cannot be traced. Needs no torch.

A module of its own: the session catches it before torch is imported.
"""


class Untraceable(Exception):
    """The message names the operation; the traceback, the place in the script.

    Not a `NotImplementedError`: libraries catch that to try another way, as `torch.nn.utils.parametrize` does.
    """
