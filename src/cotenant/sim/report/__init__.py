"""An evaluation as a page that needs nothing else."""
