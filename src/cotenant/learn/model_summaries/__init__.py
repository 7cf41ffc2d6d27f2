"""Summaries of models, as text or of a module, as layers."""
