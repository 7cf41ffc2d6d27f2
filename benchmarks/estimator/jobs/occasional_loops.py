"""Training loops with work that comes only sometimes: every few steps, after each epoch, once, or at the end.

    python benchmarks/estimator/jobs/occasional_loops.py lazy_penalties

Networks are small; what varies is when the work comes, and what is in memory then.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable

import torch
from image_parts import CLASSES, GPU, average, backbone, block, images, on_gpu
from torch import Tensor, nn, optim
from torch.nn import functional


def lazy_penalties() -> None:
    """A discriminator with a gradient penalty in every 16th step, a generator with one in every fourth."""
    generator = nn.Sequential(
        nn.Linear(64, 64 * 16 * 16), nn.Unflatten(1, (64, 16, 16)), nn.Upsample(scale_factor=2), block(64, 64),
        nn.Upsample(scale_factor=2), block(64, 32), nn.Conv2d(32, 3, 3, 1, 1),
    ).to(GPU)  # fmt: skip
    critic = nn.Sequential(
        nn.Conv2d(3, 32, 3, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(32, 64, 3, 2, 1), nn.LeakyReLU(0.2), nn.Flatten(),
        nn.Linear(64 * 256, 256), nn.LeakyReLU(0.2), nn.Linear(256, 1),
    ).to(GPU)  # fmt: skip
    averaged = copy.deepcopy(generator).eval()
    makers, judges = optim.Adam(generator.parameters(), 2e-3), optim.Adam(critic.parameters(), 2e-3)
    for step, (pictures, _) in enumerate(on_gpu(images(20 * 16, 64))):
        made = generator(torch.randn(len(pictures), 64, device=GPU))
        loss = functional.softplus(critic(made.detach())).mean() + functional.softplus(-critic(pictures)).mean()
        critic.zero_grad()
        loss.backward()
        judges.step()
        is_penalized = step % 16 == 0
        if is_penalized:
            pictures.requires_grad = True
            (slope,) = torch.autograd.grad(critic(pictures).sum(), pictures, create_graph=True)
            penalty = slope.square().flatten(1).sum(1).mean()
            critic.zero_grad()
            (80 * penalty).backward()
            judges.step()
        made = generator(torch.randn(len(pictures), 64, device=GPU))
        loss = functional.softplus(-critic(made)).mean()
        generator.zero_grad()
        loss.backward()
        makers.step()
        if step % 4 == 0:
            seeds = torch.randn(len(pictures) // 2, 64, device=GPU, requires_grad=True)
            made = generator(seeds)
            (slope,) = torch.autograd.grad((made * torch.randn_like(made)).sum(), seeds, create_graph=True)
            generator.zero_grad()
            (2 * (slope.square().sum(1).sqrt() - 1).square().mean()).backward()
            makers.step()
        average(averaged, generator)


def late_curvature() -> None:
    """A Hessian's diagonal in the last of every ten steps."""
    model = backbone(32, CLASSES).to(GPU)
    optimizer = optim.AdamW(model.parameters())
    parameters = list(model.parameters())
    curves = [torch.zeros_like(parameter) for parameter in parameters]
    for step, (pictures, labels) in enumerate(on_gpu(images(24 * 16, 64))):
        loss = functional.cross_entropy(model(pictures), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % 10 == 9:
            drawn = torch.distributions.Categorical(logits=model(pictures), validate_args=False).sample()
            gradients = torch.autograd.grad(functional.cross_entropy(model(pictures), drawn), parameters)
            for curve, gradient in zip(curves, gradients, strict=True):
                curve.mul_(0.99).addcmul_(gradient, gradient, value=0.01)


def orthogonal(matrix: Tensor) -> Tensor:
    """A matrix with orthonormal columns, about, by Newton and Schulz's iteration."""
    matrix = matrix / (matrix.norm() + 1e-7)
    for _step in range(5):
        gram = matrix.T @ matrix
        matrix = 1.5 * matrix - 0.5 * matrix @ gram
    return matrix


def projected() -> None:
    """Gradients of matrices are projected to a rank of 32; the projection is made anew every fourth step."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(3072, 1024), nn.GELU(), nn.Linear(1024, 1024), nn.GELU()).to(GPU)
    head = nn.Linear(1024, CLASSES).to(GPU)
    matrices = [layer.weight for layer in model if isinstance(layer, nn.Linear)]
    others = [layer.bias for layer in model if isinstance(layer, nn.Linear)] + list(head.parameters())
    optimizer = optim.Adam(others)
    projections: dict[int, Tensor] = {}
    states: dict[int, tuple[Tensor, Tensor]] = {}
    for step, (pictures, labels) in enumerate(on_gpu(images(9 * 64, 32, batch=64))):
        functional.cross_entropy(head(model(pictures)), labels).backward()
        with torch.no_grad():
            for number, weight in enumerate(matrices):
                if step % 4 == 0:
                    projections[number] = orthogonal(weight.grad @ torch.randn(weight.shape[1], 32, device=GPU))
                low = projections[number].T @ weight.grad
                mean, square = states.get(number, (torch.zeros_like(low), torch.zeros_like(low)))
                mean, square = 0.9 * mean + 0.1 * low, 0.99 * square + 0.01 * low.square()
                states[number] = mean, square
                weight -= 1e-3 * (projections[number] @ (mean / (square.sqrt() + 1e-8)))
                weight.grad = None
        optimizer.step()
        optimizer.zero_grad()


def best_copy() -> None:
    """After each epoch the weights are validated, and copied on the GPU where they are the best so far."""
    model = backbone(48, CLASSES).to(GPU)
    optimizer = optim.Adam(model.parameters())
    best, weights = float("inf"), copy.deepcopy(model.state_dict())
    for epoch in range(3):
        model.train()
        for pictures, labels in on_gpu(images(5 * 16, 64)):
            optimizer.zero_grad()
            functional.cross_entropy(model(pictures), labels).backward()
            optimizer.step()
        model.eval()
        losses = []
        with torch.no_grad():
            for pictures, labels in on_gpu(images(3 * 32, 64, batch=32)):
                losses.append(functional.cross_entropy(model(pictures), labels).item())
        if sum(losses) - epoch < best:
            best, weights = sum(losses) - epoch, copy.deepcopy(model.state_dict())
        torch.cuda.empty_cache()
    model.load_state_dict(weights)
    with torch.no_grad():
        model(next(on_gpu(images(128, 64, batch=128)))[0])


def snapshots() -> None:
    """A copy of the model joins an ensemble after each of four epochs; the ensemble is tested at the end."""
    model = backbone(48, CLASSES).to(GPU)
    ensemble: list[nn.Module] = []
    optimizer = optim.SGD(model.parameters(), 0.1, momentum=0.9)
    schedule = optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 4)
    for _epoch in range(4):
        for pictures, labels in on_gpu(images(4 * 16, 64)):
            loss = functional.cross_entropy(model(pictures), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        ensemble.append(copy.deepcopy(model))
    with torch.no_grad():
        for pictures, _ in on_gpu(images(2 * 64, 64, batch=64)):
            torch.stack([member(pictures).softmax(1) for member in ensemble]).mean(0)


def averaged_weights() -> None:
    """Weights are averaged from the second epoch on, and the average is tested at the end."""
    model = backbone(48, CLASSES).to(GPU)
    averaged = optim.swa_utils.AveragedModel(model)
    optimizer = optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    slow = optim.swa_utils.SWALR(optimizer, 0.05)
    loader = images(5 * 24, 64, batch=24)
    for epoch in range(3):
        for pictures, labels in on_gpu(loader):
            optimizer.zero_grad()
            functional.cross_entropy(model(pictures), labels).backward()
            optimizer.step()
        if epoch >= 1:
            averaged.update_parameters(model)
            slow.step()
    with torch.no_grad():
        for pictures, _ in on_gpu(images(2 * 96, 64, batch=96)):
            averaged(pictures).argmax(1)


def own_labels() -> None:
    """After each epoch the model labels images that have none, and the next epoch trains on both."""
    model = backbone(32, CLASSES).to(GPU)
    optimizer = optim.AdamW(model.parameters())
    labeled, unlabeled = images(4 * 16, 64), images(3 * 64, 64, batch=64)
    made: list[tuple[Tensor, Tensor]] = []
    for _epoch in range(3):
        model.train()
        for place, (pictures, labels) in enumerate(on_gpu(labeled)):
            if made:
                others, guesses = made[place % len(made)]
                pictures, labels = torch.cat([pictures, others]), torch.cat([labels, guesses])
            optimizer.zero_grad()
            functional.cross_entropy(model(pictures), labels).backward()
            optimizer.step()
        model.eval()
        made = []
        with torch.no_grad():
            for pictures, _ in on_gpu(unlabeled):
                made.append((pictures, model(pictures).argmax(1)))


def neighbors() -> None:
    """Embeddings of all images are stored on the GPU, and validation compares each test image with all of them."""
    model = backbone(32).to(GPU)
    bank = functional.normalize(torch.randn(4096, 128, device=GPU), dim=1)
    classes = torch.randint(CLASSES, (4096,), device=GPU)
    optimizer = optim.SGD(model.parameters(), 0.03, momentum=0.9)
    for epoch in range(2):
        model.train()
        for step, (pictures, _) in enumerate(on_gpu(images(5 * 32, 64, batch=32))):
            found = functional.normalize(model(pictures), dim=1)
            loss = functional.cross_entropy(found @ bank.T / 0.07, torch.arange(len(found), device=GPU))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            bank[step * 32 : step * 32 + len(found)] = found.detach()
        if (epoch + 1) % 2 == 0:
            model.eval()
            with torch.no_grad():
                for pictures, _ in on_gpu(images(2 * 128, 64, batch=128)):
                    near = (functional.normalize(model(pictures), dim=1) @ bank.T).topk(50)
                    votes = functional.one_hot(classes[near.indices], CLASSES) * (near.values / 0.07).exp()[..., None]
                    votes.sum(1).argmax(1)


def master_weights() -> None:
    """A model in half precision, its weights in single precision beside it, and a scale of losses by hand."""
    model = backbone(48, CLASSES).to(GPU).half()
    masters = [parameter.detach().float().requires_grad_() for parameter in model.parameters()]
    optimizer = optim.Adam(masters)
    for pictures, labels in on_gpu(images(5 * 24, 64, batch=24)):
        model.zero_grad()
        (functional.cross_entropy(model(pictures.half()).float(), labels) * 128).backward()
        for master, parameter in zip(masters, model.parameters(), strict=True):
            master.grad = parameter.grad.float() / 128
        nn.utils.clip_grad_norm_(masters, 1.0)
        optimizer.step()
        with torch.no_grad():
            for master, parameter in zip(masters, model.parameters(), strict=True):
                parameter.copy_(master)


def whole_set() -> None:
    """The whole set is on the GPU; batches are indexed by a permutation, and an evaluation takes all at once."""
    pictures, labels = torch.randn(600, 3, 48, 48, device=GPU), torch.randint(CLASSES, (600,), device=GPU)
    model = backbone(32, CLASSES).to(GPU)
    optimizer = optim.RMSprop(model.parameters(), momentum=0.9)
    for epoch in range(3):
        order = torch.randperm(600, device=GPU)
        for start in range(0, 600, 100):
            chosen = order[start : start + 100]
            loss = functional.cross_entropy(model(pictures[chosen]), labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if epoch % 2 == 1:
            with torch.no_grad():
                (model(pictures).argmax(1) == labels).float().mean().item()


def scales() -> None:
    """The size of images changes every second batch, between three sizes in turn."""
    model = backbone(32, CLASSES).to(GPU)
    optimizer = optim.SGD(model.parameters(), 0.1, momentum=0.9, nesterov=True)
    for step, (pictures, labels) in enumerate(on_gpu(images(16 * 16, 64))):
        side = (64, 96, 128)[step // 2 % 3]
        sized = functional.interpolate(pictures, size=(side, side), mode="bilinear", align_corners=False)
        loss = functional.cross_entropy(model(sized), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def inverse(matrix: Tensor) -> Tensor:
    """The inverse of a symmetric matrix, about, by Newton's iteration."""
    guess = matrix / matrix.square().sum().clamp(min=1e-12)
    for _step in range(6):
        guess = 2 * guess - guess @ matrix @ guess
    return guess


def factors() -> None:
    """Covariances of activations by hooks in every fourth step, and their inverses in every eighth."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(3072, 768), nn.ReLU(), nn.Linear(768, 512), nn.ReLU())
    model = model.append(nn.Linear(512, CLASSES)).to(GPU)
    optimizer = optim.SGD(model.parameters(), 0.01)
    inputs: dict[nn.Module, Tensor] = {}
    covariances: dict[nn.Module, Tensor] = {}
    inverses: dict[nn.Module, Tensor] = {}
    layers = [layer for layer in model if isinstance(layer, nn.Linear)]
    for layer in layers:
        layer.register_forward_hook(lambda module, given, _: inputs.__setitem__(module, given[0].detach()))
    for step, (pictures, labels) in enumerate(on_gpu(images(18 * 64, 32, batch=64))):
        loss = functional.cross_entropy(model(pictures), labels)
        optimizer.zero_grad()
        loss.backward()
        if step % 4 == 0:
            for layer in layers:
                given = inputs[layer]
                new = given.T @ given / len(given)
                covariances[layer] = 0.95 * covariances[layer] + 0.05 * new if layer in covariances else new
        if step % 8 == 0:
            for layer in layers:
                size = covariances[layer].shape[0]
                inverses[layer] = inverse(covariances[layer] + 1e-2 * torch.eye(size, device=GPU))
        for layer in layers:
            layer.weight.grad = layer.weight.grad @ inverses[layer]
        optimizer.step()


LOOPS: tuple[Callable[[], None], ...] = (
    *(lazy_penalties, late_curvature, projected, best_copy, snapshots, averaged_weights, own_labels),
    *(neighbors, master_weights, whole_set, scales, factors),
)

if __name__ == "__main__":
    torch.manual_seed(0)
    {loop.__name__: loop for loop in LOOPS}[sys.argv[1]]()
