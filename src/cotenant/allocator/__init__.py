"""The CUDA caching allocator of PyTorch, simulated: a trace in, segments and blocks out. Pure."""
