"""Models fitted to tables, judged, and written as weights."""
