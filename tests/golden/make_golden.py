#!/usr/bin/env python3
"""Write ops.txt, optim.txt, schedule.txt and half.txt beside this file, or those that are named: inputs, outputs and gradients of
operations, steps of optimizers, and operations on tensors of 16 bits, by PyTorch.

Needs torch (Debian: python3-torch, for half.txt; PyPI: torch). The files are kept in the repository; nothing but a new case needs this
script. A line is: name, number of dimensions, dimensions, values. Arithmetic is float64, so that the files do not depend on the
machine; half.txt says where it is not.
"""

import math
import os
import sys

import torch
from torch.nn import functional as F

HERE = os.path.dirname(os.path.abspath(__file__))
torch.manual_seed(20)


def numbers(*shape):
    """Multiples of 1/64 in [-2, 2]: exact in float32 and short in decimal."""
    return torch.randint(-128, 129, shape).double() / 64


class Writer:
    def __init__(self, name):
        self.file = open(os.path.join(HERE, name), "w", encoding="utf-8")

    def put(self, name, x):
        x = x.detach()
        dims = list(x.shape) or [1]
        values = " ".join(f"{v:.9g}" for v in x.reshape(-1).tolist())
        self.file.write(f"{name} {len(dims)} {' '.join(map(str, dims))} {values}\n")


def attention(qkv, heads):
    b, t, c3 = qkv.shape
    q, k, v = (x.view(b, t, heads, -1).transpose(1, 2) for x in qkv.split(c3 // 3, dim=2))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, -1)


LABELS = torch.tensor([2, 0, 6, 1, 1])
IGNORING = torch.tensor([2, -100, 6, -100, 1])
IDS = torch.tensor([[3, 0, 3], [299, 3, 1]])

# name: (function of the inputs, shapes of the inputs). The C test has the same table.
OPS = {
    "linear": (F.linear, [(2, 3, 5), (7, 5), (7,)]),
    "linear_plain": (F.linear, [(6, 5), (7, 5)]),
    "matmul": (torch.matmul, [(2, 3, 4, 5), (2, 3, 5, 2)]),
    "matmul_shared": (torch.matmul, [(3, 4, 5), (5, 2)]),
    "add": (torch.add, [(2, 3, 4), (3, 4)]),
    "mul": (torch.mul, [(2, 3, 4), (4,)]),
    "relu": (F.relu, [(3, 17)]),
    "gelu": (lambda x: F.gelu(4 * x, approximate="tanh"), [(3, 17)]),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (35,), w, b, 1e-5), [(2, 3, 35), (35,), (35,)]),
    "rms_norm": (lambda x, w: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w, [(2, 3, 35), (35,)]),
    "group_norm": (lambda x, w, b: F.group_norm(x, 2, w, b, 1e-5), [(2, 6, 3, 5), (6,), (6,)]),
    "embedding": (lambda table: F.embedding(IDS, table), [(300, 2)]),
    "attention": (lambda qkv: attention(qkv, 2), [(2, 5, 12)]),
    "attention_long": (lambda qkv: attention(qkv, 1), [(1, 130, 6)]),
    "transpose": (lambda x: x.transpose(0, 2).contiguous(), [(2, 3, 4)]),
    "cross_entropy": (lambda z: F.cross_entropy(z, LABELS, reduction="sum"), [(5, 19)]),
    "cross_entropy_ignoring": (lambda z: F.cross_entropy(z, IGNORING, reduction="sum", ignore_index=-100), [(5, 19)]),
}


def write_ops():
    to = Writer("ops.txt")
    for name, (function, shapes) in OPS.items():
        inputs = [numbers(*shape).requires_grad_() for shape in shapes]
        out = function(*inputs)
        weights = numbers(*(out.shape or (1,))).reshape(out.shape)
        out.backward(weights)
        for i, x in enumerate(inputs):
            to.put(f"{name}.in{i}", x)
            to.put(f"{name}.grad{i}", x.grad)
        to.put(f"{name}.out", out)
        to.put(f"{name}.weights", weights)


SGD, ADAM, ADAMW = torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW
# name: (class, its arguments, largest gradient norm or None). The C test has the same table.
OPTIMIZERS = {
    "sgd": (SGD, {"lr": 0.1}, None),
    "sgd_momentum": (SGD, {"lr": 0.1, "momentum": 0.9}, None),
    "sgd_decay": (SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.05}, None),
    "sgd_nesterov": (SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.05, "nesterov": True}, None),
    "adam": (ADAM, {"lr": 0.01}, None),
    "adam_decay": (ADAM, {"lr": 0.01, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.1}, None),
    "adamw": (ADAMW, {"lr": 0.01, "weight_decay": 0.1}, None),
    "adamw_clipped": (ADAMW, {"lr": 0.01, "weight_decay": 0.1}, 1.5),
    "sgd_clipped": (SGD, {"lr": 0.1, "momentum": 0.9}, 1.5),
}
ELEMENTS, STEPS = 19, 6


def write_optimizers():
    to = Writer("optim.txt")
    for name, (kind, arguments, largest) in OPTIMIZERS.items():
        p = numbers(ELEMENTS).requires_grad_()
        optimizer = kind([p], **arguments)
        to.put(f"{name}.start", p)
        grads = numbers(STEPS, ELEMENTS)
        grads[STEPS // 2] /= 64  # one step below the largest norm
        values = []
        for grad in grads:
            p.grad = grad.clone()
            if largest is not None:
                torch.nn.utils.clip_grad_norm_([p], largest)
            optimizer.step()
            values.append(p.detach().clone())
        to.put(f"{name}.grads", grads)
        to.put(f"{name}.values", torch.stack(values))


def write_schedules():
    to = Writer("schedule.txt")
    p = torch.zeros(1, requires_grad=True)
    kinds = {
        "step": lambda o: torch.optim.lr_scheduler.StepLR(o, step_size=4, gamma=0.5),
        "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, T_max=20, eta_min=0.05),
    }
    for name, make in kinds.items():
        optimizer = torch.optim.SGD([p], lr=0.8)
        schedule, rates = make(optimizer), []
        for _ in range(20):
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            schedule.step()
        to.put(name, torch.tensor(rates, dtype=torch.float64))


def plain_attention(qkv, heads):
    """Not scaled_dot_product_attention: Debian's PyTorch has none."""
    b, t, c3 = qkv.shape
    q, k, v = (x.reshape(b, t, heads, -1).transpose(1, 2) for x in qkv.split(c3 // 3, dim=2))
    scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])
    scores = scores.masked_fill(torch.ones(t, t).triu(1).bool(), -math.inf)
    return (scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, -1)


# As OPS. "bf16" and "f16": in float64 on inputs that are rounded, and the results are rounded. "native", where True: PyTorch's own
# operations of bfloat16, whose sums are rounded on their way; of float16 its CPU has few.
HALF_OPS = {
    "linear": (F.linear, [(2, 3, 40), (7, 40), (7,)], True),
    "matmul": (torch.matmul, [(2, 3, 4, 40), (2, 3, 40, 2)], True),
    "add": (torch.add, [(2, 3, 4), (3, 4)], True),
    "mul": (torch.mul, [(2, 3, 4), (4,)], True),
    "relu": (F.relu, [(3, 17)], True),
    "gelu": (lambda x: F.gelu(x, approximate="tanh"), [(3, 17)], True),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (35,), w, b, 1e-5), [(2, 3, 35), (35,), (35,)], True),
    "rms_norm": (lambda x, w: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w, [(2, 3, 35), (35,)], False),
    "embedding": (lambda table: F.embedding(IDS, table), [(300, 1)], False),
    "attention": (lambda qkv: plain_attention(qkv, 2), [(2, 5, 12)], False),
    "cross_entropy": (lambda z: F.cross_entropy(z, LABELS, reduction="sum"), [(5, 19)], False),
}


def write_half():
    to = Writer("half.txt")
    torch.manual_seed(21)
    for kind, dtype in (("bf16", torch.bfloat16), ("f16", torch.float16), ("native", torch.bfloat16)):
        for name, (function, shapes, native) in HALF_OPS.items():
            if kind == "native" and not native:
                continue
            work = dtype if kind == "native" else torch.float64
            inputs = [torch.randn(shape).to(dtype).to(work).requires_grad_() for shape in shapes]
            out = function(*inputs)
            weights = torch.randn(out.shape or (1,)).reshape(out.shape).to(dtype)
            out.backward(weights.to(work))
            for i, x in enumerate(inputs):
                to.put(f"{kind}.{name}.in{i}", x.double())
                to.put(f"{kind}.{name}.grad{i}", x.grad.to(dtype).double())
            to.put(f"{kind}.{name}.out", out.to(dtype if name != "cross_entropy" else torch.float32).double())
            to.put(f"{kind}.{name}.weights", weights.double())


FILES = {"ops": write_ops, "optim": write_optimizers, "schedule": write_schedules, "half": write_half}
for wanted in sys.argv[1:] or FILES:
    FILES[wanted]()
print(f"torch {torch.__version__}", file=sys.stderr)
