"""`torch.compile` in a CPU build: PyTorch's own compiler for a simulated GPU (experimental).

`compiled_calls` traces a module with AOTAutograd and has Inductor compile the graphs; `cpu_build` has what Inductor
lacks without CUDA and Triton. What runs is Inductor's own program: its buffers are allocated, its kernels do nothing.
"""
