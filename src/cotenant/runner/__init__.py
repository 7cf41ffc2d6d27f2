"""The small process around every attempt: standard library only, imported by nobody.

Started as `python -I -S <this folder> <attempt folder> [notify fd]`. In the attempt folder it reads

    spec.json      what to run (written by the engine)
    stop.json      why and how fast to stop (written by the engine, then SIGTERM to the runner)

and writes, each file at once and complete or not at all,

    claim          who runs this attempt; exists once, so an attempt runs at most once
    started.json   who runs it; durable before the program of the job starts
    result.json    how it ended; exists only when nothing of the job is left

While the job runs, `.result.reserved` keeps the blocks of the result, and tells who the job's first process is.
"""
