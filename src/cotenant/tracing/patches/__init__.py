"""The table of patches, and the patches of PyTorch and of libraries."""
