"""Studies of monitoring and collocation that can be repeated: `cotenant study`.

Each study runs an experiment of the literature on this machine, writes one row per run as soon as it ends, and draws
the published figure beside the measured one. Rows say on what they were measured; simulated GPUs are never mixed with
real ones.
"""
