"""The tracing process: started for a script, forked by a fork server, or forked for a function."""
