"""What several rooms need from the operating system: atomic files, locks, and the identity of processes.

Standard library only, and quick to import: every simulated job does. The runner is a program of its own and keeps its
own copies, in `runner/files.py` and `runner/procfs.py`.
"""
