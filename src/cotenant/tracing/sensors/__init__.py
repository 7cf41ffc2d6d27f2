"""What a script reads of its GPUs beside CUDA: `nvidia-smi` and NVML, answering for the simulated GPUs.

Their sensors show idle GPUs without other processes.
"""
