"""Workspaces of convolutions: cuDNN's own answers, and rules where there are none."""
