"""Uses of a torch package without a GPU: run with torch by test_torch_package.py. Arguments: the package's folder and name."""

import importlib
import sys

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

sys.path.insert(0, sys.argv[1])
package = importlib.import_module(sys.argv[2])
layer = getattr(torch.ops, sys.argv[2]).gemm_64_32_nt_bf16_bias_silu
assert str(layer.default._schema).endswith("(Tensor a, Tensor b, Tensor bias) -> Tensor")
with FakeTensorMode():
    a = torch.empty(5, 32, dtype=torch.bfloat16, device="cuda")
    b = torch.empty(64, 32, dtype=torch.bfloat16, device="cuda").t()
    result = layer(a, b, torch.empty(64, dtype=torch.bfloat16, device="cuda"))
    assert result.shape == (5, 64) and result.dtype == torch.bfloat16 and result.device.type == "cuda"
data = package.LAYERS["gemm_64_32_nt_bf16_bias_silu"]
a, b, bias = (torch.randn(shape, dtype=torch.bfloat16) for shape in ((5, 32), (32, 64), (64,)))
wanted = torch.nn.functional.silu(a.float() @ b.float() + bias.float()).bfloat16()
assert torch.equal(package.reference(data, {"a": a, "b": b, "bias": bias}), wanted)
operands, size = package._checked("layer", data, (a, b, bias))
assert size == 5 and operands["b"].stride() == (1, 32) and torch.equal(operands["b"], b)
for wrong in ((a, b.t(), bias), (a.float(), b, bias), (a, b, bias[:-1])):
    try:
        package._checked("layer", data, wrong)
    except ValueError:
        continue
    raise AssertionError("a wrong tensor was taken")
own = package.library()
own.call_gemm_64_32_nt_bf16_bias_silu_why.restype = importlib.import_module("ctypes").c_char_p
assert own.call_gemm_64_32_nt_bf16_bias_silu_why(5) is None
assert own.call_gemm_64_32_nt_bf16_bias_silu_why(-1) is not None
print("fine")
