"""Uses of a JAX package without a GPU: run with JAX by test_jax_package.py. Arguments: the package's folder and name, the fake driver.

The package's library was built with a stream that the test makes, so that XLA's processor backend can call its targets.
"""

import ctypes
import importlib
import sys

import jax
import jax.numpy as jnp

sys.path.insert(0, sys.argv[1])
name, driver = sys.argv[2], ctypes.CDLL(sys.argv[3], ctypes.RTLD_GLOBAL)
package = importlib.import_module(name)
LAYER = "gemm_64_32_nt_bf16_bias_silu"
layer, data = getattr(package, LAYER), package.LAYERS[LAYER]
keys = jax.random.split(jax.random.key(1), 3)
a, b, bias = (jax.random.normal(key, shape, jnp.bfloat16) for key, shape in zip(keys, ((5, 32), (32, 64), (64,)), strict=True))

shape = jax.eval_shape(layer, a, b, bias)
assert shape.shape == (5, 64) and shape.dtype == jnp.bfloat16
lowered = jax.jit(layer).trace(a, b, bias).lower(lowering_platforms=("cuda",)).as_text()
assert f"@{name}_{LAYER}(" in lowered and "size = 5" in lowered, lowered
assert "operand_layouts = [dense<[1, 0]> : tensor<2xindex>, dense<[0, 1]>" in lowered, lowered  # b lies in columns

wanted = jax.nn.silu(a.astype(jnp.float32) @ b.astype(jnp.float32) + bias.astype(jnp.float32)).astype(jnp.bfloat16)
assert jnp.array_equal(package.reference(data, {"a": a, "b": b, "bias": bias}), wanted)
for wrong in ((a, b.T, bias), (a.astype(jnp.float32), b, bias), (a, b, bias[:-1])):
    try:
        layer(*wrong)
    except ValueError as error:
        assert str(error).startswith(f"{LAYER}: "), error
        continue
    raise AssertionError("a wrong array was taken")
assert layer(a[:0], b, bias).shape == (0, 64)

own = package.library()
jax.ffi.register_ffi_target(f"{name}_{LAYER}", jax.ffi.pycapsule(getattr(own, f"target_{LAYER}")), platform="cpu")
launches = ctypes.c_int.in_dll(driver, "fake_event_count")
before = launches.value
assert jax.jit(layer)(a, b, bias).block_until_ready().shape == (5, 64)
assert launches.value > before, "nothing was launched"
gradients = jax.vjp(layer, a, b, bias)[1](jnp.ones((5, 64), jnp.bfloat16))
expected = jax.vjp(lambda *given: package.reference(data, dict(zip(data["operands"], given, strict=True))), a, b, bias)[1](
    jnp.ones((5, 64), jnp.bfloat16)
)
assert all(jnp.array_equal(one, other) and one.dtype == jnp.bfloat16 for one, other in zip(gradients, expected, strict=True))
assert jax.vmap(layer, in_axes=(0, None, None))(jnp.stack([a, a]), b, bias).shape == (2, 5, 64)
ctypes.c_int.in_dll(driver, "fake_launch_result").value = 2
try:
    jax.jit(layer)(a, b, bias).block_until_ready()
except Exception as error:
    assert "the CUDA driver says: out of memory" in str(error), error
else:
    raise AssertionError("a launch that failed was taken for one that worked")
print("fine")
