"""A script on its own CUDA build of torch, which runs on a null GPU: PyTorch's memory history becomes the trace.

`nullgpu` makes the libraries of that GPU and the environment to load them; `estimators.null_gpu` joins both.
"""
