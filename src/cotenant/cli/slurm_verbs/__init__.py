"""Commands as of Slurm, and the set-up of a Slurm whose jobs share GPUs."""
