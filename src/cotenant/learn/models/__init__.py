"""Models: fitted to tables, cross-validated, and written as weights."""
