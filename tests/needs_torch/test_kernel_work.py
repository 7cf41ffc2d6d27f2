"""The kernels that a trace counts in a step: FLOPs and launches against what is known of the operators."""

from __future__ import annotations

from traced_scripts import traced

STEPS = """
optimizer = torch.optim.{optimizer}
for _ in range(3):
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
"""


def kernels_of(folder, body, optimizer="SGD(model.parameters(), lr=0.1)"):
    head = "import torch\nfrom torch import nn\n"
    return traced(folder, head + body + STEPS.format(optimizer=optimizer)).header.kernels


def flops(kernels):
    return sum(group.times * group.flops for group in kernels if group.kind == "product")


def test_a_linear_layer_multiplies_three_times(tmp_path):
    """Forward, and backward for the weights and for the input, which needs a gradient."""
    body = "model = nn.Linear(512, 256, device='cuda')\nx = torch.randn(64, 512, device='cuda', requires_grad=True)"
    assert flops(kernels_of(tmp_path, body)) == 3 * 2 * 64 * 512 * 256


def test_a_convolution_counts_its_pixels(tmp_path):
    body = "model = nn.Conv2d(16, 32, 3, padding=1, device='cuda')\nx = torch.randn(8, 16, 20, 20, device='cuda')"
    forward = 2 * 8 * 32 * 20 * 20 * 16 * 9
    assert flops(kernels_of(tmp_path, body)) == 2 * forward, "forward, and backward for the weights alone"


def test_views_launch_nothing_and_activations_move_bytes(tmp_path):
    views = (
        "model = nn.Sequential(nn.Linear(64, 64, device='cuda'), nn.Flatten(0))\nx = torch.randn(64, 64, device='cuda')"
    )
    plain = "model = nn.Linear(64, 64, device='cuda')\nx = torch.randn(64, 64, device='cuda')"
    relu = "model = nn.Sequential(nn.Linear(64, 64, device='cuda'), nn.ReLU())\nx = torch.randn(64, 64, device='cuda')"
    counts = [sum(group.times for group in kernels_of(tmp_path, body)) for body in (plain, views, relu)]
    assert counts[1] == counts[0]
    assert counts[2] == counts[0] + 2, "forward and backward"


def test_an_optimizer_over_lists_launches_few_kernels(tmp_path):
    layers = "model = nn.Sequential(*[nn.Linear(8, 8, device='cuda') for _ in range(40)])"
    body = layers + "\nx = torch.randn(4, 8, device='cuda')"
    foreach = kernels_of(tmp_path, body, "Adam(model.parameters())")
    single = kernels_of(tmp_path, body, "Adam(model.parameters(), foreach=False)")
    assert sum(group.times for group in single) > sum(group.times for group in foreach) + 300


def test_only_one_step_is_counted(tmp_path):
    body = "model = nn.Linear(512, 256, device='cuda')\nx = torch.randn(64, 512, device='cuda')"
    assert flops(kernels_of(tmp_path, body)) == 2 * 2 * 64 * 512 * 256
