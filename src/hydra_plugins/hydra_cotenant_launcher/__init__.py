"""Launcher of hydra for sweeps on a shared GPU server: `--multirun hydra/launcher=cotenant`."""
