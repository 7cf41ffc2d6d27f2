"""Order of results, copies and temporaries of CUDA kernels, as PyTorch's CUDA build makes them on a null GPU."""

from __future__ import annotations

import pytest

from traced_calls import HEAD, MARK, requests_of_calls
from traced_scripts import traced

torch = pytest.importorskip("torch", reason="tracing needs torch")


@pytest.fixture(scope="module")
def requests_of(tmp_path_factory):
    return requests_of_calls(tmp_path_factory.mktemp("order"), CALLS)


IMAGE = 4 * 8 * 6 * 6 * 4
BN = "torch.autograd.grad(y, (x, *bn.parameters()), g)"
CALLS = {
    "deep copy of buffers": ("m = nn.BatchNorm1d(8, affine=False).cuda()", "copy.deepcopy(m)"),
    "softmax": (
        "x = made(50, 77); y = F.softmax(x, 1); g = torch.ones(50, 77, device='cuda')",
        "torch.autograd.grad(y, x, g)",
    ),
    "log-softmax": (
        "x = made(50, 77); y = F.log_softmax(x, 1); g = torch.ones(77, 50, device='cuda').t()",
        "torch.autograd.grad(y, x, g)",
    ),
    "layer norm": (
        "x = made(50, 77); norm = nn.LayerNorm(77).cuda(); y = norm(x); g = torch.ones(77, 50, device='cuda').t()",
        "torch.autograd.grad(y, (x, *norm.parameters()), g)",
    ),
    "channels-last convolution": (
        "x = made(4, 8, 6, 6).to(memory_format=torch.channels_last); conv = nn.Conv2d(8, 5, 2, 2, bias=False).cuda()",
        "conv(x)",
    ),
    "gradient of its weight": (
        "y = conv(x); g = torch.ones_like(y); x = x.detach()",
        "torch.autograd.grad(y, (conv.weight,), g)",
    ),
    "convolution, slice as gradient": (
        ("x = made(4, 8, 6, 6); conv = nn.Conv2d(8, 5, 2, 2, bias=False).cuda(); y = conv(x)\n"
         "g = torch.ones(4, 9, 3, 3, device='cuda')[:, :5]"),
        "torch.autograd.grad(y, (x, conv.weight), g)",
    ),
    "cuDNN's batch norm, other layout": (
        ("x = made(4, 8, 6, 6); bn = nn.BatchNorm2d(8).cuda(); y = bn(x)\n"
         "g = torch.ones_like(y).to(memory_format=torch.channels_last)"),
        BN,
    ),
    "channels-last batch norm in bfloat16": (
        ("x = torch.randn(8, 64, 28, 28, device='cuda', dtype=torch.bfloat16).to(memory_format=torch.channels_last)\n"
         "x.requires_grad_(); bn = nn.BatchNorm2d(64).cuda(); y = bn(x); g = torch.ones_like(y)"),
        BN,
    ),
    "its forward pass": ("", "bn(x)"),
    "batch norm of vectors": (
        "x = made(512, 1024); bn = nn.BatchNorm1d(1024).cuda(); y = bn(x); g = torch.ones_like(y)", BN,
    ),
    "frozen batch norm": (
        "x = made(8, 64, 28, 28, dtype=torch.bfloat16); bn = nn.BatchNorm2d(64).cuda().eval()", "bn(x)",
    ),
    "group norm": ("x = made(8, 64, 28, 28, dtype=torch.float16); norm = nn.GroupNorm(8, 64).cuda().half()", "norm(x)"),
    "its gradients, other layout": (
        "y = norm(x); g = torch.ones_like(y).to(memory_format=torch.channels_last)",
        "torch.autograd.grad(y, (x, *norm.parameters()), g)",
    ),
    "upsampling, slice as gradient": (
        ("x = made(4, 8, 3, 3); y = F.interpolate(x, scale_factor=2, mode='bilinear')\n"
         "g = torch.ones(4, 9, 6, 6, device='cuda')[:, :8]"),
        "torch.autograd.grad(y, x, g)",
    ),
    "roll": ("x = made(4, 8, 6, 6)", "x.roll((1, 1), (2, 3))"),
    "index gradient": (
        "x = made(500, 3); i = torch.zeros(777, dtype=torch.long, device='cuda'); y = x[i]; g = torch.ones_like(y)",
        "torch.autograd.grad(y, x, g)",
    ),
    "index_put": (
        "x = torch.zeros(500, 3, device='cuda')", "x.index_put((i,), g, accumulate=True)",
    ),
    "index gradient of columns": (
        ("x = made(8, 196); i = torch.zeros(49, 49, dtype=torch.long, device='cuda'); y = x[:, i]\n"
         "g = torch.ones_like(y)"),
        "torch.autograd.grad(y, x, g)",
    ),
    "index gradient, 256 rows": (
        ("x = made(256, 8); i = torch.zeros(70, 70, dtype=torch.long, device='cuda'); y = x[i]\n"
         "g = torch.ones_like(y)"),
        "torch.autograd.grad(y, x, g)",
    ),
    "gradient of two indices": (
        "x = made(40, 30, 8); y = x[i, i]; g = torch.ones_like(y)", "torch.autograd.grad(y, x, g)",
    ),
    "gradient of two indices apart": (
        "x = made(40, 8, 30); y = x[i, :, i]; g = torch.ones_like(y)", "torch.autograd.grad(y, x, g)",
    ),
    "gradient of two indices apart, behind another": (
        "x = made(30, 6, 2, 30); y = x[:, i, :, i]; g = torch.ones_like(y)", "torch.autograd.grad(y, x, g)",
    ),
    "power of a number": ("x = made(1000)", "10000 ** x"),
    "power of one": ("", "1 ** x"),
    "average pool, channels-last": (
        ("x = made(8, 16, 14, 14).to(memory_format=torch.channels_last); y = F.adaptive_avg_pool2d(x, 7)\n"
         "g = torch.ones(8, 16, 7, 7, device='cuda').to(memory_format=torch.channels_last)"),
        "torch.autograd.grad(y, x, g)",
    ),
    "average pool, gradient channels-last": (
        ("x = made(8, 16, 14, 14); y = F.adaptive_avg_pool2d(x, 7)\n"
         "g = torch.ones(8, 16, 7, 7, device='cuda').to(memory_format=torch.channels_last)"),
        "torch.autograd.grad(y, x, g)",
    ),
    "pool of a slice": ("x = torch.ones(4, 20, 8, 8, device='cuda')[:, 3:11]", "F.avg_pool2d(x, 2)"),
    "largest of a slice": ("", "F.max_pool2d(x, 2)"),
    "adaptive pool of a slice": ("", "F.adaptive_avg_pool2d(x, 4)"),
    "pixels of a slice": ("", "F.interpolate(x, scale_factor=2, mode='nearest')"),
    "pool of a slice of volumes": ("v = torch.ones(4, 20, 4, 4, 4, device='cuda')[:, 3:11]", "F.avg_pool3d(v, 2)"),
    "squeezed channels in channels-last": (
        ("x = made(4, 8, 1, 1).as_strided((4, 8, 1, 1), (8, 1, 8, 8)); ends = (8, 24), (24, 8)\n"
         "a, b = (nn.Conv2d(*end, 1).cuda().to(memory_format=torch.channels_last) for end in ends)\n"
         "y = b(F.relu(a(x)))"),
        "torch.autograd.grad(y, (x, *a.parameters(), *b.parameters()), torch.ones(4, 8, 1, 1, device='cuda'))",
    ),
    "scaled heads": (
        "x = made(2, 5, 3 * 4 * 6); q, k, v = x.view(2, 5, 3, 4, 6).permute(2, 0, 3, 1, 4); q = q * 2",
        "q @ k.transpose(2, 3)",
    ),
    "few embeddings": (
        ("w = made(2, 40); i = torch.zeros(4096, dtype=torch.long, device='cuda'); y = F.embedding(i, w)\n"
         "g = torch.ones_like(y)"),
        "torch.autograd.grad(y, w, g)",
    ),
    "hardswish": (
        ("x = made(4, 8, 6, 6).to(memory_format=torch.channels_last); y = F.hardswish(x)\n"
         "g = torch.ones(4, 8, 6, 6, device='cuda')"),
        "torch.autograd.grad(y, x, g)[0].view(4, 8, 36).mul(1)",
    ),
    "squared error": ("x = made(16, 3, 256, 256); t = torch.rand_like(x)", "F.mse_loss(x, t)"),
    "its gradient, other dtype": (
        "x = made(50, 77, dtype=torch.bfloat16); y = F.mse_loss(x, torch.ones(50, 77, device='cuda'))",
        "torch.autograd.grad(y, x)",
    ),
    "Huber's loss": ("x = made(16, 3, 256, 256)", "F.huber_loss(x, t)"),
    "cross entropy of two classes": (
        "x = torch.sigmoid(made(16, 1, 256, 256)); t = torch.rand_like(x)", "F.binary_cross_entropy(x, t)",
    ),
    "soft margin": ("x = made(64, 100); t = torch.ones_like(x)", "F.soft_margin_loss(x, t)"),
    "unfold of another layout": ("x = made(4, 14, 14, 8).permute(0, 3, 1, 2)", "F.unfold(x, 3, padding=1)"),
    "its gradient": ("y = F.unfold(x, 3, padding=1); g = torch.ones_like(y)", "torch.autograd.grad(y, x, g)"),
    "fold": ("x = made(4, 196, 72).transpose(1, 2)", "F.fold(x, (14, 14), 3, padding=1)"),
    "gradient of a maximum": (
        "x = made(64, 100); y = x.max(1)[0]; g = torch.ones_like(y)", "torch.autograd.grad(y, x, g)",
    ),
    "gradient of gather": (
        "i = torch.zeros(64, 7, dtype=torch.long, device='cuda'); y = x.gather(1, i); g = torch.ones_like(y)",
        "torch.autograd.grad(y, x, g)",
    ),
    "gradient of columns": (
        "i = torch.zeros(30, dtype=torch.long, device='cuda'); y = x.index_select(1, i); g = torch.ones_like(y)",
        "torch.autograd.grad(y, x, g)",
    ),
    "scatter": (
        "x = torch.zeros(64, 100, device='cuda'); i = torch.zeros(64, 7, dtype=torch.long, device='cuda')",
        "x.scatter_add(1, i, x)",
    ),
    "distances": ("x, z = made(64, 100), made(64, 100)", "torch.cdist(x, z)"),
    "their gradient": ("y = torch.cdist(x, z, p=1); g = torch.ones_like(y)", "torch.autograd.grad(y, x, g)"),
    "gradient of counted differences": (
        "y = torch.cdist(x, z, p=0); g = torch.ones_like(y)", "torch.autograd.grad(y, x, g)",
    ),
    "sort of short rows": ("", "x.sort(1)"),
    "sort": ("x = torch.randn(100_000, device='cuda')", "x.sort()"),
    "sort of integers": ("i = torch.zeros(100_000, dtype=torch.long, device='cuda')", "i.sort()"),
    "sort of half precision": ("x = x.bfloat16()", "x.sort()"),
    "sort of few rows": ("x = torch.randn(5000, 8, device='cuda')", "x.sort(0)"),
    "sort of many rows": ("x = torch.randn(200, 5000, device='cuda')", "x.sort(1)"),
    "images to channels last": (
        "x = torch.randn(64, 3, 32, 32)", "x.to('cuda', memory_format=torch.channels_last)",
    ),
    "channels-last images": ("x = x.to(memory_format=torch.channels_last)", "x.to('cuda')"),
    "the same in half precision": ("", "x.to('cuda', torch.float16)"),
    "converted on the CPU": ("x = torch.randn(64, 3, 32, 32)", "x.to('cuda', torch.bfloat16)"),
    "converted on the GPU": ("", "x.to('cuda', torch.bfloat16, non_blocking=True)"),
    "bytes of permuted images": (
        "x = torch.zeros(64, 32, 32, 3, dtype=torch.uint8).permute(0, 3, 1, 2)", "x.to('cuda', torch.float32)",
    ),
    "into a slice": (
        "d = torch.zeros(64, 6, 32, 32, device='cuda'); x = torch.randn(64, 3, 32, 32)", "d[:, :3].copy_(x)",
    ),
    "a slice to the CPU": ("", "d[:, :3].cpu()"),
    "a transpose to the CPU": ("x = torch.randn(64, 100, device='cuda')", "x.t().cpu()"),
    "binary cross entropy": (
        ("x = made(512, 1000); t = torch.ones(512, 1000, device='cuda')\n"
         "y = F.binary_cross_entropy_with_logits(x, t)"),
        "torch.autograd.grad(y, x)",
    ),
    "with weights of positives": (
        "p = torch.ones(1000, device='cuda'); y = F.binary_cross_entropy_with_logits(x, t, pos_weight=p)",
        "torch.autograd.grad(y, x)",
    ),
    "with weights, not reduced": (
        "y = F.binary_cross_entropy_with_logits(x, t, weight=t, reduction='none'); g = torch.ones_like(y)",
        "torch.autograd.grad(y, x, g)",
    ),
    "a graph of its gradient": (
        "y = F.binary_cross_entropy_with_logits(x, t); y2 = torch.autograd.grad(y, x, create_graph=True)[0].sum()",
        "torch.autograd.grad(y2, x)",
    ),
    "with a target that needs a gradient": (
        "t = torch.ones(512, 1000, device='cuda').requires_grad_()", "F.binary_cross_entropy_with_logits(x, t)",
    ),
    "both of its gradients": (
        "y = F.binary_cross_entropy_with_logits(x, t)", "torch.autograd.grad(y, (x, t))",
    ),
    "second gradient of group norm": (
        ("x = made(4, 32, 16, 16); n = nn.GroupNorm(8, 32).cuda()\n"
         "g = torch.autograd.grad(n(x).sum(), x, create_graph=True)[0].square().sum()"),
        "torch.autograd.grad(g, (x, n.weight))",
    ),
    "bags": (
        ("bag = nn.EmbeddingBag(1000, 64, mode='sum').cuda()\n"
         "i = torch.zeros(512, 20, dtype=torch.long, device='cuda')"),
        "bag(i)",
    ),
    "their gradients": (
        "y = bag(i); g = torch.ones(512, 64, device='cuda')",
        "torch.autograd.grad(y, bag.weight, g)",
    ),
    "largest of bags": (
        "bag = nn.EmbeddingBag(1000, 64, mode='max').cuda(); y = bag(i)",
        "torch.autograd.grad(y, bag.weight, g)",
    ),
    "one-hot": ("", "F.one_hot(i, 1000)"),
    "permutation": ("", "torch.randperm(100_000, device='cuda')"),
    "short permutation": ("", "torch.randperm(1000, device='cuda')"),
    "draws": ("p = torch.rand(64, 5000, device='cuda')", "torch.multinomial(p, 10)"),
    "draws of one": ("", "torch.multinomial(p, 1)"),
    "draws with replacement": ("", "torch.multinomial(p, 10, replacement=True)"),
    "scan of a row": ("x = torch.ones(100_000, device='cuda')", "torch.cumsum(x, 0)"),
    "long scan of a row": ("x = torch.ones(4_000_000, device='cuda')", "torch.cumprod(x, 0)"),
    "scan of integers": ("x = torch.ones(4_000_000, device='cuda', dtype=torch.long)", "torch.cumsum(x, 0)"),
    "scan in half precision": (
        "x = torch.ones(300_000, device='cuda', dtype=torch.bfloat16)",
        "torch.cumsum(x, 0)",
    ),
    "scan of a mask": ("x = torch.ones(5000, device='cuda', dtype=torch.bool)", "torch.cumsum(x, 0)"),
    "scan of rows": ("x = torch.ones(8, 1000, device='cuda')", "torch.cumsum(x, 1)"),
    "largest so far": ("x = torch.ones(1000, device='cuda')", "torch.cummax(x, 0)"),
    "masked scatter": ("x = torch.ones(100_000, device='cuda'); m = x > 0", "x.masked_scatter_(m, x)"),
    "positions": ("m = torch.ones(8, 1000, device='cuda') > 0", "m.nonzero()"),
    "positions of few": ("m = torch.ones(4096, device='cuda') > 0", "m.nonzero()"),
    "positions of a transpose": ("m = torch.ones(300, 400, device='cuda') > 0", "m.t().nonzero()"),
    "what a mask selects": ("x = torch.ones(300, 400, device='cuda'); m = x > 0", "x[m]"),
    "different integers": ("x = torch.ones(100_000, device='cuda', dtype=torch.long)", "torch.unique(x)"),
    "different numbers": ("x = torch.ones(4_000_000, device='cuda')", "torch.unique(x)"),
    "largest of short rows": ("x = torch.ones(30, 9999, device='cuda')", "x.topk(5, 1)"),
    "largest of long rows": ("x = torch.ones(256, 50257, device='cuda')", "x.topk(5, 1)"),
    "largest integers": ("x = torch.ones(8, 100_000, device='cuda', dtype=torch.long)", "x.topk(5, 1)"),
    "largest of columns": ("x = torch.ones(100_000, 8, device='cuda')", "x.topk(5, 0)"),
    "largest of many rows": ("x = torch.ones(5000, 400, device='cuda')", "x.topk(5, 1)"),
    "reentrant checkpoint": (
        ("from torch.utils.checkpoint import checkpoint\n"
         "def twice(t):\n    h = t * 3\n    return (h.relu() * 2 + h) * 5\n"
         "y = checkpoint(twice, made(50, 77), use_reentrant=True).sum()"),
        "y.backward()",
    ),
    "flex attention": (
        ("from torch.nn.attention.flex_attention import flex_attention\n"
         "q, k, v = (made(2, 4, 256, 64, dtype=torch.bfloat16) for _ in range(3))"),
        "flex_attention(q, k, v)",
    ),
    "gradients of flex attention": (
        "y = flex_attention(q, k, v); g = torch.ones_like(y)", "torch.autograd.grad(y, (q, k, v), g)",
    ),
}  # fmt: skip
WANTED = {
    "deep copy of buffers": [32, 4, 32, 4, 8, 8],
    "softmax": [50 * 77 * 4] * 2,
    "log-softmax": [50 * 77 * 4] * 2,
    "layer norm": [50 * 77 * 4, 77 * 4, 77 * 4, 50 * 77 * 4],
    "channels-last convolution": [4 * 5 * 9 * 4, 5 * 8 * 4 * 4],
    "gradient of its weight": [5 * 8 * 4 * 4],
    "convolution, slice as gradient": [IMAGE, 4 * 5 * 9 * 4, 4 * 5 * 9 * 4, 5 * 8 * 4 * 4],
    "cuDNN's batch norm, other layout": [IMAGE, IMAGE, 32, 32],
    "channels-last batch norm in bfloat16": [256, 256, 256, 256, 12_800, 8, 802_816],
    "its forward pass": [802_816, 256, 256, 25_600, 8],
    "batch norm of vectors": [4096, 4096, 4096, 4096, 2_097_152],
    "frozen batch norm": [802_816, 256, 256],
    "group norm": [802_816, 128, 128, 256, 256, 2048, 2048],
    "its gradients, other layout": [802_816, 802_816, 128, 128, 2048, 2048, 256, 256, 2048],
    "upsampling, slice as gradient": [4 * 8 * 9 * 4, IMAGE],
    "roll": [IMAGE, IMAGE],
    "index gradient": [500 * 3 * 4, 777 * 8, 777 * 8, 777 * 8, 777 * 8, 777 * 8, 1],
    "index gradient of columns": [6272, *(19_208,) * 5, 44_543],
    "index gradient, 256 rows": [8192, *(39_200,) * 5, 4607],
    "gradient of two indices": [38_400, *(39_200,) * 7, 85_503],
    "gradient of two indices apart": [38_400, *(39_200,) * 4, 38_400, *(39_200,) * 3, 85_503],
    "gradient of two indices apart, behind another": [43_200, *(39_200,) * 4, 43_200, *(39_200,) * 3, 4607],
    "power of a number": [4000, 8],
    "power of one": [4000],
    "average pool, channels-last": [100_352],
    "average pool, gradient channels-last": [100_352, 25_088],
    "pool of a slice": [2048, 8192],
    "largest of a slice": [2048, 4096, 8192],
    "adaptive pool of a slice": [8192, 2048],
    "pixels of a slice": [32_768, 8192],
    "pool of a slice of volumes": [1024, 8192],
    "squeezed channels in channels-last": [128, 384, 768, 32, 384, 384, 128, 768, 96],
    "scaled heads": [2 * 4 * 5 * 6 * 4, 2 * 4 * 5 * 6 * 4, 2 * 4 * 5 * 5 * 4],
    "hardswish": [IMAGE, IMAGE],
    "squared error": [12_582_912, 12_582_912],
    "its gradient, other dtype": [4, 50 * 77 * 2],
    "Huber's loss": [12_582_912, 4],
    "cross entropy of two classes": [4_194_304, 4],
    "soft margin": [25_600, 4],
    "unfold of another layout": [25_088, 25_088, 225_792],
    "its gradient": [225_792],
    "fold": [225_792, 225_792],
    "gradient of a maximum": [25_600],
    "gradient of gather": [25_600],
    "gradient of columns": [25_600],
    "distances": [25_600, 256, 256, 25_600, 256, 256, 25_600, 26_112, 26_112, 16_384],
    "their gradient": [25_600, 1_638_400],
    "gradient of counted differences": [25_600],
    "sort of short rows": [25_600, 51_200, 800],
    "sort": [400_000, 800_000, 800_000, 1_242_623],
    "sort of integers": [800_000, 800_000, 800_000, 1_644_543],
    "sort of half precision": [200_000, 800_000, 800_000, 5_469_183],
    "sort of few rows": [*(160_000, 320_000, 160_000, 160_000), *(320_000,) * 3, 160_000, 503_039, 13_823],
    "sort of many rows": [4_000_000, 8_000_000, 8_000_000, 12_000_255],
    "images to channels last": [786_432, 786_432],
    "channels-last images": [786_432],
    "the same in half precision": [393_216, 393_216],
    "converted on the CPU": [393_216],
    "converted on the GPU": [393_216, 786_432],
    "bytes of permuted images": [786_432, 786_432],
    "into a slice": [786_432],
    "a slice to the CPU": [786_432],
    "a transpose to the CPU": [],
    "binary cross entropy": [4, 2_048_000],
    "with weights of positives": [4, *(2_048_000,) * 3],
    "with a target that needs a gradient": [2_048_000, 2_048_000, 4],
    "both of its gradients": [4, *(2_048_000,) * 3],
    "with weights, not reduced": [2_048_000],
    "bags": [4096, 4096, 81_920, 131_072],
    "their gradients": [
        *(81_920, 81_920, 81_920, 171_519, 256_000, 81_920, 8, 81_920, 1279, 8000, 8000, 1279, 8, 16_192, 518_144),
    ],
    "largest of bags": [256_000],
    "one-hot": [81_920_000],
    "permutation": [800_000, 8, *(800_000,) * 3, 1_638_399],
    "short permutation": [8000, 8, 8000, 4000, 4000, 1],
    "draws": [5120, 4, 4, 1, 1, 1, 256, 64, 1, 1, 1_280_000, 2560],
    "draws of one": [512, 4, 4, 1, 1, 1, 256, 64, 1, 1, 1_280_000],
    "draws with replacement": [5120, *(1_280_000,) * 3],
    "scan of a row": [400_000, 1279],
    "long scan of a row": [16_000_000, 17_663],
    "scan of integers": [32_000_000, 72_703],
    "scan in half precision": [600_000, 1535],
    "scan of a mask": [40_000, 40_000, 1279],
    "scan of rows": [32_000],
    "largest so far": [4000, 8000],
    "masked scatter": [800_000, 2815],
    "positions": [4, 17_663, 8 * 1000 * 2 * 8, 1023],
    "positions of few": [4, 1, 4096 * 8, 1023],
    "positions of a transpose": [120_000, 4, 17_663, 120_000 * 2 * 8, 1279],
    "what a mask selects": [4, 17_663, 120_000 * 2 * 8, 1279, 480_000],
    "different integers": [800_000, 844_543, 800_000, 8, 1279],
    "different numbers": [16_000_000, 16_517_631, 16_000_000, 8, 7935],
    "largest of short rows": [600, 1200],
    "largest of long rows": [5120, 10_240, 1024, 2048, 2048, 524_288, 262_144, 4096, 4096, 1279, 1279],
    "largest integers": [320, 320, 64, 64, 128, 323_584, 8192, 2528, 2528, 1279, 1279],
    "largest of columns": [160, 320, 32, 64, 64, 323_584, 8192, 2528, 2528, 1279, 1279],
    "largest of many rows": [
        100_000,
        200_000,
        20_000,
        40_000,
        40_000,
        2_560_000,
        5_120_000,
        20_000,
        20_000,
        1279,
        1279,
    ],
    # Five results again, and four gradients: both of `h` are added in place.
    "reentrant checkpoint": [4, *[15_400] * 9],
    "flex attention": [2 * 4 * 256 * 4, 2 * 4 * 256 * 4, 2 * 4 * 256 * 64 * 2],
    "gradients of flex attention": [2 * 4 * 256 * 4, *(2 * 4 * 256 * 64 * 2,) * 3],
}


@pytest.mark.parametrize("name", WANTED)
def test_requests_are_those_of_a_cuda_build(requests_of, name):
    assert requests_of[name] == WANTED[name]


def test_accumulating_by_index_makes_a_result_where_a_script_calls_it(requests_of):
    assert requests_of["index_put"][:2] == [500 * 3 * 4, 777 * 8]


def test_scripts_that_scatter_get_a_result_of_their_own(requests_of):
    assert requests_of["scatter"] == [25_600]


def test_sums_in_the_second_gradient_of_group_norm_are_out_of_place(requests_of):
    """Products of the input's size, their sum, and its sum with an offset."""
    assert requests_of["second gradient of group norm"].count(4 * 4 * 32 * 16 * 16) == 12


def test_a_reduced_loss_holds_as_much_as_its_input(tmp_path):
    """The storage of the result, which `mse_loss` resizes and does not make anew."""
    source = HEAD.replace("MARK", str(MARK)) + (
        "x = made(256, 1024)\nloss = F.mse_loss(x, torch.ones_like(x))\n"
        "assert loss.shape == () and loss.untyped_storage().nbytes() == 4 * 256 * 1024\n"
        "one.sum().backward()\noptimizer.step()"
    )
    assert not traced(tmp_path, source).partial


def test_tables_of_few_rows_need_no_partial_sums(requests_of):
    """4,096 indices of 2 rows: 411 parts, by number instead of by content."""
    assert requests_of["few embeddings"][-2:] == [411 * 8, 411 * 8]
