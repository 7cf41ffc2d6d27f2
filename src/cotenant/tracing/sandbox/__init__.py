"""The sandbox of a traced script: an overlay of its files, and no network."""
