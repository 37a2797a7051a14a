import torch
from checks import close, run

torch.manual_seed(1)


def agrees(function, *shapes, tolerance=1e-5):
    arguments = [torch.rand(shape) for shape in shapes]
    results = torch.compile(function)(*[argument.cuda() for argument in arguments])
    expected = function(*arguments)
    for got, want in zip(*(r if isinstance(r, tuple) else (r,) for r in (results, expected)), strict=True):
        close(got.cpu(), want, tolerance)


def pointwise():
    """pointwise"""
    agrees(lambda x, y: (x.sin() * y + 1).relu(), (64, 100), (64, 100))


def softmax():
    """softmax"""
    agrees(lambda x: torch.softmax(x * 3, dim=-1), (64, 100))


def reductions():
    """sum, amax and mean along each dimension"""
    agrees(lambda x: (x.sum(0), x.amax(1), x.mean()), (70, 90))


def norm():
    """layer norm"""
    agrees(lambda x: torch.nn.functional.layer_norm(x, (100,)), (64, 100))


run(pointwise, softmax, reductions, norm)
