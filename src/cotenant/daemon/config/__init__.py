"""The daemon's configuration, and where its files are."""
