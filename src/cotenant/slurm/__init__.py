"""A real Slurm, used as its users use it: by its commands, without an administrator.

`sbatch` scripts are submitted with what their estimate says and watched while they run; `pack` shares the GPUs of one
allocation among many jobs. Nothing here needs a daemon of ours on the cluster, or a change of its configuration.
"""
