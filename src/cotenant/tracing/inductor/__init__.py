"""`torch.compile` in a CPU build: PyTorch's own compiler for a simulated GPU.

`compiled_frames` has Dynamo read the script's functions and Inductor compile the graphs; `cpu_build` has what Inductor
lacks without CUDA and Triton, `plain_torch` takes the tracer's own functions away while Dynamo reads. What runs is
Inductor's own program: its buffers are allocated, its kernels do nothing.
"""
