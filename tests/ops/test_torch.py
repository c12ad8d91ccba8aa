"""The operations on torch tensors, as torch's own operators, and on a GPU."""

import threading

import pytest
from sample_kernels import needs_gpu

from gemmgen import ops
from gemmgen.core.errors import LaunchError
from gemmgen.layouts import nchw32_to_nchw, nchw_to_nchw32
from gemmgen.ops.torch_operators import reduce

torch = pytest.importorskip("torch")
ops.register_torch()


def integers(*shape, type=torch.float32, device="cpu"):
    return torch.randint(-4, 5, shape, device=device).to(type)


MATMULS = [
    ((integers(33, 20), integers(20, 40)), {}),
    ((integers(20, 33).T, integers(40, 20).T, integers(40)), {"activation": "gelu"}),
    ((integers(3, 9, 20), integers(20, 40)), {"alpha": 0.5}),
    ((integers(20), integers(20, 40)), {}),
    ((integers(9, 20, type=torch.bfloat16), integers(20, 40, type=torch.bfloat16)), {}),
    ((integers(9, 32, type=torch.int8), integers(24, 32, type=torch.int8).T), {}),
    ((integers(9, 32, type=torch.int8), integers(24, 32, type=torch.int8).T), {"scale_a": torch.rand(9, 1), "output": "bfloat16"}),
    ((integers(9, 20, type=torch.float16), integers(20, 40, type=torch.float16)), {"activation": "silu", "output": "float32"}),
    ((integers(9, 32, type=torch.int8).abs().to(torch.uint8), integers(24, 32, type=torch.int8).T), {}),
    ((integers(9, 20), integers(20, 40)), {"precision": "tf32"}),
]
BYTES = [
    ((integers(9, 32, type=torch.float8_e4m3fn), integers(24, 32, type=torch.float8_e4m3fn).T), {"scale_b": torch.rand(1, 24)}),
    ((integers(9, 33, type=torch.float8_e5m2), integers(33, 7, type=torch.float8_e4m3fn)), {"output": "float8_e5m2"}),
]
REDUCTIONS = [(), ("max", [0]), ("argmax", [1], True), ("mean", [0, 1]), ("any", [1])]


# -- on the emulator -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", range(len(MATMULS)))
def test_opcheck_accepts_matmul(case):
    assert set(torch.library.opcheck(torch.ops.gemmgen.matmul.default, *MATMULS[case]).values()) == {"SUCCESS"}


@pytest.mark.parametrize("case", range(len(BYTES)))
def test_opcheck_accepts_matmul_of_8_bit_floats(case):
    """All checks but the comparison of arguments before and after, for which torch would multiply such numbers."""
    checks = ("test_autograd_registration", "test_faketensor")
    assert set(torch.library.opcheck(torch.ops.gemmgen.matmul.default, *BYTES[case], test_utils=checks).values()) == {"SUCCESS"}


@pytest.mark.parametrize("arguments", REDUCTIONS)
def test_opcheck_accepts_reduce(arguments):
    assert set(torch.library.opcheck(torch.ops.gemmgen.reduce.default, (integers(12, 9), *arguments)).values()) == {"SUCCESS"}


def groups(kind=torch.bfloat16, rows=37, ends=(9, 9, 30, 37)):
    a, b = integers(rows, 16, type=kind), integers(len(ends), 24, 16, type=kind).mT
    return a, b, torch.tensor(ends, dtype=torch.int32)


def by_groups(a, b, offsets, bias=None, alpha=1.0, activation=lambda value: value):
    """Reference of grouped products, for torch's autograd."""
    ends = offsets.tolist()
    parts = []
    for group, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
        part = alpha * (a[start:end].float() @ b[group].float())
        parts.append(activation(part if bias is None else part + bias[group].float()))
    return torch.cat(parts)


GROUPED = [
    (groups(), {}),
    ((*groups(torch.float16), integers(4, 24)), {"alpha": 0.5, "activation": "relu", "output": "float32"}),
    (groups(torch.int8), {}),
    (groups(torch.int8), {"scale_a": torch.rand(37, 1), "scale_b": torch.rand(4, 24), "output": "bfloat16"}),
]


@pytest.mark.parametrize("case", range(len(GROUPED)))
def test_opcheck_accepts_grouped_matmul(case):
    assert set(torch.library.opcheck(torch.ops.gemmgen.grouped_matmul.default, *GROUPED[case]).values()) == {"SUCCESS"}


def test_compiled_code_multiplies_groups():
    compiled = torch.compile(lambda a, b, ends: ops.grouped_matmul(a, b, ends, scale_a=0.5) + 1, backend="aot_eager", fullgraph=True)
    a, b, ends = groups()
    assert torch.equal(compiled(a, b, ends), by_groups(a, b, ends, alpha=0.5).bfloat16() + 1)
    bytes = groups(torch.int8)
    assert torch.equal(compiled(*bytes), by_groups(*bytes, alpha=0.5) + 1)


@pytest.mark.parametrize("activation", ["", "relu", "gelu"])
@pytest.mark.parametrize("compile", [False, True])
def test_derivatives_of_groups(activation, compile):
    a, b, ends = (one.requires_grad_() if one.is_floating_point() else one for one in groups(torch.float16))
    bias = integers(4, 24, type=torch.float16).requires_grad_()
    words = {"alpha": 0.25, "activation": activation or None}
    multiply = torch.compile(ops.grouped_matmul, backend="aot_eager", fullgraph=True) if compile else ops.grouped_matmul
    weight = integers(37, 24).half()
    got = torch.autograd.grad((multiply(a, b, ends, bias=bias, **words) * weight).sum(), (a, b, bias))
    reference = {"": lambda value: value, "relu": torch.relu, "gelu": torch.nn.functional.gelu}[activation]
    expected = torch.autograd.grad((by_groups(a, b, ends, bias, 0.25, reference) * weight).sum(), (a, b, bias))
    for one, other in zip(got, expected, strict=True):
        assert torch.allclose(one.float(), other.float(), rtol=4e-3, atol=2e-2)


def test_rows_of_no_group_have_no_gradient():
    a, b, ends = groups(rows=40)
    a.requires_grad_(), b.requires_grad_()
    result = ops.grouped_matmul(a, b, ends, activation="silu")
    upstream = torch.ones_like(result)
    upstream[37:] = torch.nan
    da, db = torch.autograd.grad(result, (a, b), upstream)
    assert not da[37:].any() and not torch.isnan(da).any()
    assert not torch.isnan(db).any() and not db[1].any()  # the second group is empty


def test_groups_of_bytes_have_no_derivatives():
    bias = torch.zeros(4, 24).requires_grad_()
    with pytest.raises(LaunchError, match="derivatives are of float16 and bfloat16"):
        ops.grouped_matmul(*groups(torch.int8), bias=bias)
    with pytest.raises(LaunchError, match="records gradients"):
        ops.grouped_matmul(*groups(torch.float16), bias=bias.half(), out=torch.zeros(37, 24).half())


def test_opcheck_accepts_conv2d():
    x, w = integers(1, 2, 5, 5, 32, type=torch.int8), integers(64, 64, 3, 3, type=torch.int8)
    options = {"padding": [1, 1], "alpha": 0.25, "activation": "relu"}
    assert set(torch.library.opcheck(torch.ops.gemmgen.conv2d.default, (x, w), options).values()) == {"SUCCESS"}


def test_results_are_torchs_own():
    a, b = integers(33, 20), integers(20, 40)
    assert torch.equal(ops.matmul(a, b), a @ b)
    assert torch.equal(ops.matmul(b.T, a.T), b.T @ a.T)
    assert torch.equal(ops.matmul(a.bfloat16(), b.bfloat16()), (a @ b).bfloat16())
    assert torch.equal(ops.reduce(a > 0, "any", 1), (a > 0).any(1))


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.int8, torch.float8_e4m3fn, torch.float8_e5m2])
def test_compiled_code_multiplies_every_type(kind):
    a, b, scale = integers(9, 33, type=kind), integers(33, 7, type=kind), torch.full((1,), 0.5)
    compiled = torch.compile(lambda x, y: ops.matmul(x, y, scale_a=scale, output="bfloat16"), backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(a, b), (a.double() @ b.double() / 2).bfloat16())


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.int8])
def test_compiled_code_takes_numbers_as_scales(kind):
    a, b = integers(9, 32, type=kind), integers(32, 7, type=kind)
    compiled = torch.compile(lambda x, y: ops.matmul(x, y, scale_a=0.5, scale_b=2.0), backend="aot_eager", fullgraph=True)
    assert compiled(a, b).dtype == (torch.float32 if kind == torch.int8 else kind)
    assert torch.equal(compiled(a, b), ops.matmul(a, b, scale_a=0.5, scale_b=2.0))


def test_numbers_as_scales_have_derivatives():
    a, b = integers(5, 8).requires_grad_(), integers(8, 3)
    ops.matmul(a, b, scale_a=0.5).sum().backward()
    assert torch.equal(a.grad, (0.5 * b.sum(1)).expand(5, 8))


def test_compiled_code_calls_the_operators():
    a, b = integers(33, 20), integers(20, 40)

    def both(x, y):
        return ops.matmul(x, y, activation="relu") + ops.reduce(x, "sum")

    compiled = torch.compile(both, backend="aot_eager", fullgraph=True, dynamic=True)
    for rows in (33, 11):
        assert torch.equal(compiled(a[:rows], b), (a[:rows] @ b).relu() + a[:rows].sum())


def test_operations_without_derivatives_refuse_gradients():
    x = integers(4, 4).requires_grad_()
    with pytest.raises(LaunchError, match="no derivative of product is known"):
        ops.reduce(x, "product")
    with pytest.raises(LaunchError, match="no derivative of h_swish is known"):
        ops.elementwise(x, "h_swish")
    with pytest.raises(LaunchError, match="requires gradients"):
        ops.reduce(x, ["min", "max"])
    with torch.no_grad():
        assert torch.equal(ops.reduce(x, "product"), x.prod())


@pytest.mark.parametrize("axis", [None, (0, 2), 1])
@pytest.mark.parametrize("operation", reduce.REDUCTIONS)
def test_derivatives_of_reductions(operation, axis):
    x = torch.randn(3, 4, 5, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda values: ops.reduce(values, operation, axis, keepdims=axis == 1), (x,), fast_mode=True)


FUNCTIONS = {
    "relu": torch.relu,
    "leaky_relu": torch.nn.functional.leaky_relu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "silu": torch.nn.functional.silu,
    "gelu": torch.nn.functional.gelu,
    "exp": torch.exp,
    "sqrt": lambda x: x.abs().sqrt(),
    "square": torch.square,
    "abs": torch.abs,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_derivatives_of_elementwise_functions(name):
    x, weights = torch.randn(3, 7), torch.randn(3, 7)
    x = (x.abs() + 0.1 if name == "sqrt" else x).requires_grad_()
    (got,) = torch.autograd.grad(ops.elementwise(x, name), x, weights)
    (expected,) = torch.autograd.grad(FUNCTIONS[name](x), x, weights)
    assert torch.allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_derivatives_of_operations_one_after_the_other():
    x, bias, f, z = (torch.randn(*shape, dtype=torch.float64).requires_grad_() for shape in ((3, 5), (5,), (3, 1), (3, 5)))

    def chain(x, bias, f, z):
        return ops.elementwise(x, ["bias", "square", "multiply", "residual", "exp"], bias=bias, f=f, z=z, gamma=0.5)

    assert torch.autograd.gradcheck(chain, (x, bias, f, z), fast_mode=True)
    assert torch.autograd.gradgradcheck(chain, (x, bias, f, z), fast_mode=True)


def test_compiled_losses_have_derivatives():
    x, bias = torch.randn(6, 7).requires_grad_(), torch.randn(7).requires_grad_()

    def loss(x, bias):
        return ops.reduce(ops.reduce(ops.elementwise(x, ["bias", "silu"], bias=bias), "logsumexp", 1), "mean")

    expected = torch.autograd.grad(torch.nn.functional.silu(x + bias).logsumexp(1).mean(), (x, bias))
    for call in (loss, torch.compile(loss, backend="aot_eager", fullgraph=True)):
        got = torch.autograd.grad(call(x, bias), (x, bias))
        assert all(torch.allclose(one, other, atol=1e-6) for one, other in zip(got, expected, strict=True))


def test_positions_of_tensors_that_require_gradients():
    x = torch.randn(4, 9).requires_grad_()
    assert torch.equal(ops.reduce(x, "argmax", 1), x.argmax(1))


ACTIVATIONS = {
    "": lambda z: z,
    "relu": torch.relu,
    "leaky_relu": torch.nn.functional.leaky_relu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda z: torch.nn.functional.gelu(z, approximate="tanh"),
    "silu": torch.nn.functional.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}
SHAPES = [((9, 20), (20, 12)), ((3, 9, 20), (20, 12)), ((3, 9, 20), (1, 20, 12)), ((20,), (20, 12)), ((9, 20), (20,)), ((20,), (20,))]


def gradients(a, b, bias, residual, activation, reference):
    """Derivatives of alpha a b + bias + gamma residual, through the activation, by ops or by torch in float64."""
    inputs = [None if tensor is None else tensor.detach().clone().requires_grad_() for tensor in (a, b, bias, residual)]
    given = [tensor for tensor in inputs if tensor is not None]
    if reference:
        one, two, three, four = (None if tensor is None else tensor.double() for tensor in inputs)
        z = 0.5 * (one @ two) + (0 if three is None else three) + (0 if four is None else 0.25 * four)
        result = ACTIVATIONS[activation](z)
    else:
        one, two, three, four = inputs
        result = ops.matmul(one, two, alpha=0.5, bias=three, residual=four, gamma=0.25, activation=activation or None)
    weights = torch.linspace(-1, 1, result.numel(), dtype=result.dtype, device=result.device).reshape(result.shape)
    return [gradient.double() for gradient in torch.autograd.grad((result * weights).sum(), given)]


def error_of_gradients(a, b, bias, residual, activation):
    """The largest error of a derivative, relative to the largest element of its reference."""
    got, expected = (gradients(a, b, bias, residual, activation, reference) for reference in (False, True))
    return max(float((one - other).abs().max() / other.abs().max().clamp_min(1e-30)) for one, other in zip(got, expected, strict=True))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_derivatives_of_products_with_every_activation(activation):
    a, b = torch.randn(9, 20), torch.randn(20, 12)
    assert error_of_gradients(a, b, torch.randn(12), torch.randn(9, 12), activation) <= 1e-5


@pytest.mark.parametrize("shapes", SHAPES)
def test_derivatives_of_products_of_every_shape(shapes):
    assert error_of_gradients(torch.randn(shapes[0]), torch.randn(shapes[1]), None, None, "") <= 1e-5


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_derivatives_of_halves(kind):
    a, b, bias = (torch.randn(*shape).to(kind) for shape in ((9, 32), (32, 16), (9, 1)))
    assert error_of_gradients(a, b, bias, None, "gelu") <= 2e-2


def test_second_derivatives_of_products():
    a, b = torch.randn(5, 6).requires_grad_(), torch.randn(6, 7).requires_grad_()

    def second(multiply):
        (first,) = torch.autograd.grad(multiply(a, b).pow(2).sum(), a, create_graph=True)
        return torch.autograd.grad(first.pow(2).sum(), [a, b])

    got = second(lambda a, b: ops.matmul(a, b, activation="tanh"))
    expected = second(lambda a, b: torch.tanh(a @ b))
    assert all(torch.allclose(one, other, rtol=1e-4, atol=1e-4) for one, other in zip(got, expected, strict=True))


def test_compiled_code_has_derivatives():
    a, b = torch.randn(5, 6).requires_grad_(), torch.randn(6, 7)
    compiled = torch.compile(lambda x: ops.matmul(x, b, activation="gelu").sum(), backend="aot_eager", fullgraph=True)
    (got,) = torch.autograd.grad(compiled(a), a)
    (expected,) = torch.autograd.grad(torch.nn.functional.gelu(a @ b).sum(), a)
    assert torch.allclose(got, expected, atol=1e-5)


@pytest.mark.parametrize("change", [{"out": torch.empty(4, 4)}, {"activation": {"op": "clamp", "high": 1.0}}, {"bias": 1.0}])
def test_what_cannot_be_recorded_is_refused(change):
    with pytest.raises(LaunchError, match="records gradients"):
        ops.matmul(torch.randn(4, 4).requires_grad_(), torch.randn(4, 4), **change)


def test_products_of_bytes_have_no_derivatives():
    scale = torch.ones(1).requires_grad_()
    with pytest.raises(LaunchError, match="derivatives are of"):
        torch.ops.gemmgen.matmul(integers(9, 32, type=torch.int8), integers(24, 32, type=torch.int8).T, scale_a=scale, output="float32")


# -- on a GPU --------------------------------------------------------------------------------------------------


@needs_gpu
def test_types_that_no_kernel_reads_are_converted_on_the_stream():
    """The current stream is busy: what is converted there too early, or too late, has other values."""
    x, busy, stream = integers(4000, 4000, type=torch.int16, device="cuda"), integers(8192, 8192, device="cuda"), torch.cuda.Stream()
    ops.elementwise(x, "square"), ops.reduce(x, "max", 1)
    torch.cuda.synchronize()
    for _ in range(8):
        busy @ busy
    results = [ops.elementwise(x, "square", stream=stream), ops.reduce(x, "max", 1, stream=stream)]
    stream.synchronize()
    with torch.cuda.stream(stream):
        found = [result.cpu() for result in results]
    assert torch.equal(found[0], (x * x).cpu()) and torch.equal(found[1], x.amax(1).cpu())


@needs_gpu
@pytest.mark.parametrize("on", ["default", "current", "given"])
def test_operands_that_no_kernel_reads_are_copied(on):
    """Gaps in both axes, one value everywhere, and a batch axis that repeats: on the default stream, on the current one, and on another."""
    a, b, one = integers(2, 60, 80, device="cuda")[:, ::2, ::2], integers(40, 66, device="cuda")[:, ::3], integers(1, 1, device="cuda")
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream if on == "current" else torch.cuda.default_stream()):
        given = {"stream": stream} if on == "given" else {}
        results = [ops.matmul(a, b, **given), ops.matmul(a, one.expand(40, 5), **given)]
    torch.cuda.synchronize()
    assert torch.equal(results[0], a @ b)
    assert torch.equal(results[1], a @ one.expand(40, 5))


@needs_gpu
@pytest.mark.parametrize("kind", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("seed", range(8))
def test_gpu_products_of_random_shapes_and_layouts(kind, seed):
    generator = torch.Generator().manual_seed(seed)

    def extent(most):
        return int(torch.randint(1, most, (1,), generator=generator))

    def matrix(rows, columns):
        layout = extent(5)
        if layout == 1:
            return integers(columns, rows, type=kind, device="cuda").T
        if layout == 2:
            return integers(rows, columns + 5, type=kind, device="cuda")[:, 2 : columns + 2]
        return integers(rows, columns, type=kind, device="cuda")

    m, n, k = (extent(most) for most in ((400, 300, 200), (20, 4000, 60), (2000, 30, 900), (130, 130, 4000))[seed % 4])
    a, b, bias = matrix(m, k), matrix(k, n), integers(n, type=kind, device="cuda")
    expected = ((a.double() @ b.double()) + bias).to(kind)
    assert torch.equal(ops.matmul(a, b, bias=bias), expected)


@needs_gpu
def test_gpu_real_data_stays_within_the_error_of_float32():
    a, b = torch.randn(777, 2048, device="cuda"), torch.randn(2048, 513, device="cuda")
    got = ops.matmul(a, b, activation="gelu").double()
    expected = torch.nn.functional.gelu(a.double() @ b.double())
    assert ((got - expected).abs() <= 2048 * 2.0**-23 * (a.double().abs() @ b.double().abs())).all()


@needs_gpu
def test_gpu_batches_and_results_that_are_given():
    a, b = integers(7, 60, 40, device="cuda"), integers(7, 40, 50, device="cuda")
    out = torch.empty(7, 50, 60, device="cuda").mT
    assert ops.matmul(a, b, out=out) is out
    assert torch.equal(out, a @ b)
    with pytest.raises(LaunchError, match="overlaps"):
        ops.matmul(a[0, :40], b[0, :, :40], out=a[0, :40])


@needs_gpu
@pytest.mark.parametrize("shape", [(1 << 20,), (1000, 1003), (64, 129, 33)])
@pytest.mark.parametrize("op", ["sum", "max", "argmax"])
def test_gpu_reductions_along_every_axis(shape, op):
    x = integers(*shape, device="cuda")
    named = {"sum": torch.sum, "max": torch.amax, "argmax": torch.argmax}[op]
    for axis in [None, *range(len(shape))]:
        expected = named(x) if axis is None else named(x, dim=axis)
        if op == "argmax":  # torch names any of equal elements
            flat = x.reshape(-1) if axis is None else x
            got = ops.reduce(x, op, axis)
            picked = flat[got] if axis is None else x.gather(axis, got.unsqueeze(axis)).squeeze(axis)
            assert torch.equal(picked, x.amax() if axis is None else x.amax(axis))
        else:
            assert torch.equal(ops.reduce(x, op, axis), expected)


@needs_gpu
def test_gpu_convolution():
    x, w = integers(3, 64, 20, 21, type=torch.int8, device="cuda"), integers(96, 64, 3, 3, type=torch.int8, device="cuda")
    expected = torch.nn.functional.conv2d(x.double(), w.double(), stride=2, padding=1)
    weights = ops.Filter(w)
    for _ in range(2):
        got = ops.conv2d(nchw_to_nchw32(x), weights, stride=2, padding=1, output="int32")
        assert torch.equal(nchw32_to_nchw(got).double(), expected)


@needs_gpu
def test_gpu_work_goes_to_current_stream_and_to_one_given():
    a, b = integers(512, 4096, device="cuda"), integers(4096, 64, device="cuda")
    expected = (a + 1) @ b
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        inside = ops.matmul(a + 1, b) * 1
    out = torch.empty(512, 64, device="cuda")
    with torch.cuda.stream(stream):
        later = a + 1
    ops.matmul(later, b, out=out, stream=stream)
    torch.cuda.synchronize()
    assert torch.equal(inside, expected)
    assert torch.equal(out, expected)


@needs_gpu
def test_gpu_streams_and_threads_have_their_own_workspaces():
    a, b = integers(128, 4096, device="cuda"), integers(4096, 128, device="cuda")
    expected = a @ b
    torch.cuda.synchronize()
    wrong = []

    def work():
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(200):
                if not torch.equal(ops.matmul(a, b), expected):
                    wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@needs_gpu
@pytest.mark.parametrize("size", [(256, 256, 256), (128, 128, 8192), (16, 4096, 4096), (512, 512, 4096)])
def test_gpu_graphs_capture_the_operations(size):
    m, n, k = size
    a, b = integers(m, k, device="cuda"), integers(k, n, device="cuda")
    ops.matmul(a, b), ops.reduce(a, "sum")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        product = ops.matmul(a, b)
        total = ops.reduce(product, "sum", 1)
    for step in range(3):
        a.copy_(integers(m, k, device="cuda"))
        graph.replay()
        ops.matmul(b.T, a.T)  # beside the graph, with another workspace
        assert torch.equal(product, a @ b), step
        assert torch.equal(total, (a @ b).sum(1)), step


@needs_gpu
def test_gpu_opcheck_and_torch_compile():
    a, b, bias = (integers(*shape, device="cuda") for shape in ((65, 33), (33, 70), (70,)))
    torch.library.opcheck(torch.ops.gemmgen.matmul.default, (a, b, bias), {"activation": "relu"})
    torch.library.opcheck(torch.ops.gemmgen.reduce.default, (a, "sum", [1]))
    compiled = torch.compile(lambda x, y: ops.matmul(x, y, bias=bias) * 2, fullgraph=True)
    assert torch.equal(compiled(a, b), (a @ b + bias) * 2)


@needs_gpu
def test_gpu_cupy_arrays_of_every_layout():
    cupy = pytest.importorskip("cupy")
    a, b = cupy.asarray(integers(65, 33).numpy()), cupy.asarray(integers(33, 70).numpy())
    got = ops.matmul(a, b)
    assert isinstance(got, cupy.ndarray)
    assert bool((got == a @ b).all())
    assert bool((ops.matmul(b.T, a.T, bias=1.0) == b.T @ a.T + 1).all())
    assert bool((ops.matmul(a[::2, 3:20], b[3:20]) == a[::2, 3:20] @ b[3:20]).all())
    out = cupy.zeros((65, 70), "f")
    for _ in range(2):
        assert ops.matmul(a, b, out=out, beta=1.0) is out
    assert bool((out == 2 * (a @ b)).all())
    assert bool((ops.reduce(a, "sum", 0) == a.sum(0)).all())
    assert bool((ops.reduce(a > 0, "any", 1) == (a > 0).any(1)).all())
    mean, variance = ops.reduce(a, "mean_variance", 1)
    assert bool(cupy.allclose(mean, a.mean(1), atol=1e-6) & cupy.allclose(variance, a.var(1), rtol=1e-4))
    with pytest.raises(LaunchError, match="out is written, but overlaps a"):
        ops.matmul(a, b[:, :33], out=a)


@needs_gpu
def test_gpu_cupy_convolution_with_a_filter_that_is_kept():
    cupy = pytest.importorskip("cupy")
    x, w = integers(2, 64, 9, 9, type=torch.int8), integers(64, 64, 3, 3, type=torch.int8)
    want = torch.nn.functional.conv2d(x.float(), w.float(), padding=1)
    kept, image = ops.Filter(cupy.asarray(w.numpy())), nchw_to_nchw32(cupy.asarray(x.numpy()))
    for _ in range(2):
        got = ops.conv2d(image, kept, padding=1, output="float32")
        assert isinstance(got, cupy.ndarray)
        assert torch.equal(torch.from_numpy(nchw32_to_nchw(cupy.asnumpy(got))), want)


@needs_gpu
def test_gpu_cupy_work_goes_to_its_current_stream():
    cupy = pytest.importorskip("cupy")
    a, b = cupy.asarray(integers(512, 512).numpy()), cupy.asarray(integers(512, 512).numpy())
    want = a @ b
    cupy.cuda.Device().synchronize()
    stream, delay = cupy.cuda.Stream(non_blocking=True), cupy.random.rand(4096, 4096, dtype="f")
    cupy.cuda.Device().synchronize()
    for given in (None, stream):
        late = cupy.zeros_like(a)
        cupy.cuda.Device().synchronize()
        with stream:
            for _ in range(3):
                delay = delay @ delay
                delay /= delay.max()
            late[...] = a  # the product must come after this
            if given is None:
                got = ops.matmul(late, b)
        if given is not None:
            got = ops.matmul(late, b, stream=given)
        stream.synchronize()
        assert bool((got == want).all())


class Exported:
    """A tensor that only DLPack can read."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack__(self, **options):
        return self.tensor.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()


@needs_gpu
def test_gpu_arrays_that_only_dlpack_can_read():
    a, b, out = integers(65, 33, device="cuda"), integers(33, 70, device="cuda"), torch.zeros(65, 70, device="cuda")
    for _ in range(2):
        ops.matmul(Exported(a), Exported(b), out=Exported(out))
        torch.cuda.synchronize()
        assert torch.equal(out, a @ b)
        out.zero_()
    with pytest.raises(LaunchError, match="pass out="):
        ops.matmul(Exported(a), Exported(b))
    with pytest.raises(LaunchError, match="overlaps"):
        ops.matmul(Exported(a), Exported(b[:, :33]), out=Exported(a))
    mixed = ops.matmul(a, Exported(b))
    assert isinstance(mixed, torch.Tensor)
    assert torch.equal(mixed, a @ b)


@needs_gpu
def test_gpu_a_call_costs_the_host_less_than_10_microseconds():
    import time

    def microseconds(call):
        best = float("inf")
        for _ in range(200):  # other processes may disturb most of the rounds
            torch.cuda.synchronize()
            started = time.perf_counter()
            for _ in range(50):
                call()
            best = min(best, (time.perf_counter() - started) / 50)
        torch.cuda.synchronize()
        return best * 1e6

    a, b, out = (torch.ones(64, 64, device="cuda") for _ in range(3))
    pairs = (
        (lambda: ops.matmul(a, b), lambda: torch.matmul(a, b)),
        (lambda: ops.matmul(a, b, out=out), lambda: torch.matmul(a, b, out=out)),
    )
    for own, of_torch in pairs:
        ops.matmul(a, b)
        # Some hosts are slow: on those where torch takes longer than 10 microseconds, torch is the measure.
        assert microseconds(own) < max(10.0, 1.1 * microseconds(of_torch))


@needs_gpu
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_gpu_derivatives_are_torchs(kind):
    a, b, bias = (torch.randn(*shape, device="cuda").to(kind) for shape in ((640, 512), (512, 768), (768,)))
    assert error_of_gradients(a, b, bias, None, "gelu") <= (1e-5 if kind == torch.float32 else 2e-2)


@needs_gpu
def test_gpu_compiled_layers_have_derivatives():
    a, b = torch.randn(640, 512, device="cuda"), torch.randn(512, 768, device="cuda").requires_grad_()
    compiled = torch.compile(lambda x, y: ops.matmul(x, y, activation="relu").square().sum(), fullgraph=True)
    (got,) = torch.autograd.grad(compiled(a, b), b)
    (expected,) = torch.autograd.grad((a.double() @ b.double()).relu().square().sum(), b)
    assert (got - expected).abs().max() <= 1e-5 * expected.abs().max()


@needs_gpu
@pytest.mark.parametrize("transposed", [False, True])
def test_gpu_planes_of_a_weight_are_kept(transposed):
    a, b = torch.randn(512, 1024, device="cuda"), torch.randn(1024, 2048, device="cuda")
    b[:, 7] *= torch.exp2(torch.randint(-60, 60, (1024,), device="cuda").float())
    kept = ops.Planes(b.T.contiguous().T if transposed else b)
    expected, size = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    for _ in range(2):
        got = ops.matmul(a, kept, activation="relu")
        assert ((got - expected.relu()).abs() <= 1e-6 * size).all()


@needs_gpu
def test_gpu_planes_are_not_made_in_a_capture():
    a, b = torch.randn(512, 1024, device="cuda"), torch.randn(1024, 2048, device="cuda")
    expected, size = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    ops.matmul(a, b)
    kept, captured, graph = ops.Planes(b), torch.empty(512, 2048, device="cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ops.matmul(a, kept, out=captured)
    assert ((ops.matmul(a, kept) - expected).abs() <= 1e-6 * size).all()
    graph.replay()
    assert ((captured - expected).abs() <= 1e-6 * size).all()


@needs_gpu
def test_gpu_planes_are_there_for_every_stream():
    a, b = torch.randn(64, 4096, device="cuda"), torch.randn(4096, 4096, device="cuda")
    expected, size = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    kept, streams = ops.Planes(b), [torch.cuda.Stream(), torch.cuda.Stream()]
    out = [torch.empty(64, 4096, device="cuda") for _ in streams]
    torch.cuda.synchronize()
    for stream, result in zip(streams, out, strict=True):
        ops.matmul(a, kept, out=result, stream=stream)
    torch.cuda.synchronize()
    assert all(((result - expected).abs() <= 1e-6 * size).all() for result in out)
