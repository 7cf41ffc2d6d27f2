"""The small process around every attempt: it imports the standard library only, and no other room imports it.

Started as `python -I -S <this folder> <attempt folder> [notify fd]`. In the attempt folder it reads

    spec.json      what to run (written by the engine)
    stop.json      why and how fast to stop (written by the engine, then SIGTERM to the runner)

and writes, each file atomically,

    claim          which runner runs this attempt; created once, so an attempt runs at most once
    started.json   the same, with the start time; on disk before the program of the job starts
    result.json    how it ended; exists only when nothing of the job is left

While the job runs, `.result.reserved` holds the disk blocks of the result, and after 50 ms the identity of the job's
first process. `runner.log` exists where the runner had something to say.

It is a program of its own, started as a folder and with every attempt. So it imports no other room, and has its own
small copies of `osutil.atomic` and `osutil.procfs` in `files` and `procfs`.
"""
