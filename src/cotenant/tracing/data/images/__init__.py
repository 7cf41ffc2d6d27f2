"""Images, videos, and lists of them, of data sets that are not on this machine."""
