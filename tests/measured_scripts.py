"""Training scripts for the probe on a machine without a GPU: plain, or with a fake `torch.cuda`."""

from __future__ import annotations

TRAIN = """
import sys
import torch
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(400, 4), torch.randint(3, (400,)))
loader = DataLoader(data, batch_size=4)
model = torch.nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(int(sys.argv[1]) if len(sys.argv) > 1 else 9):
    batches = 0
    for inputs, labels in loader:
        batches += 1
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    print("epoch", epoch, "batches", batches, flush=True)
    with torch.no_grad():
        print("validation", sum(1 for inputs, _ in loader if model(inputs) is not None), flush=True)
"""

FAKE_CUDA = """
import torch
cuda = torch.cuda
held = {"current": 0, "peak": 0}
cuda.is_initialized = lambda: True
cuda.is_available = lambda: True
cuda.current_device = lambda: 0
cuda.synchronize = lambda *a: None
cuda.mem_get_info = lambda *a: (60, 100)
cuda.memory_allocated = lambda *a: held["current"]
cuda.memory_reserved = lambda *a: 1000
cuda.memory_stats = lambda *a: {"num_alloc_retries": 2, "num_ooms": 0}
cuda.memory_stats_as_nested_dict = lambda *a: {
    kind + "_bytes": {"all": {"peak": held["peak"] * factor}}
    for kind, factor in (("allocated", 1), ("reserved", 2), ("active", 1), ("requested", 1))
}

def reset(*a):
    held["peak"] = held["current"]

cuda.reset_peak_memory_stats = reset

class Properties:
    name, major, minor, multi_processor_count, total_memory = "NVIDIA Numbers", 9, 0, 132, 100

cuda.get_device_properties = lambda *a: Properties

class Event:
    count = 0

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        Event.count += 1
        self.at = Event.count

    def synchronize(self):
        pass

    def elapsed_time(self, other):
        return 250.0 * (other.at - self.at)

cuda.Event = Event
history = []
cuda.memory._record_memory_history = lambda enabled="all", **k: history.append((enabled, k))
cuda.memory._snapshot = lambda *a: {"device_traces": [[
    {"action": "alloc", "addr": 512, "size": 9, "stream": 0, "time_us": 1, "frames": []}
]]}
for call, _ in list(cuda._queued_calls):
    if call.__name__ == "_start_history":
        call()
assert history[0][0] == "all" and history[0][1]["max_entries"] > 0

def take(current, peak=0):
    held["current"] = current
    held["peak"] = max(held["peak"], current, peak)

take(10)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
grow = model.register_forward_hook(lambda *a: take(40))
optimizer.register_step_pre_hook(lambda *a: take(20, 70))
optimizer.register_step_post_hook(lambda *a: take(15))
for step in range(9):
    loss = model(torch.randn(3, 2)).sum()
    loss.register_hook(lambda g: take(30, 50))
    loss.backward()
    optimizer.step()
"""
