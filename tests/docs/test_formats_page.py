"""The examples of docs/formats.md run on a GPU as a reader would type them, beside arrays of the shapes that the page tells."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from sample_kernels import needs_gpu

torch = pytest.importorskip("torch")

PAGE = Path(__file__).resolve().parents[2] / "docs" / "formats.md"
SECTIONS = [(name.splitlines()[0], name) for name in re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)[1:]]
EXAMPLES = [(heading, text, body) for heading, text in SECTIONS for body in re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)]
RESULTS = {
    "Block scales": "y experts",
    "Rows of experts": "z out",
    "Matrices anywhere": "results",
    "Triangular matrices": "gram lower",
    "Narrow weights": "y",
    "Activations of 8 bits": "y z",
    "2:4 sparsity": "y",
    "Turing": "y",
    "Sums in float16": "y",
    "float64": "c batch",
    "float64 by 8-bit integers": "c",
    "Complex numbers": "c fast",
}
"""Names in each section's examples of results, which are finite numbers."""
K, N, GROUP = 512, 256, 128


def words(rows: int, columns: int) -> Any:
    """Random words, each of which holds eight valid codes of 4 bits."""
    return torch.randint(-(2**31), 2**31 - 1, (rows, columns), device="cuda", dtype=torch.int32)


def scales(*shape: int, dtype: Any = torch.float16) -> Any:
    return torch.rand(*shape, device="cuda").to(dtype)


def given(heading: str) -> dict[str, Any]:
    """The arrays that a section takes for granted."""
    ends = torch.arange(32, 513, 32, device="cuda", dtype=torch.int32)
    groups = K // GROUP
    checkpoint = {"qweight": words(K // 8, N), "scales": scales(groups, N), "qzeros": words(groups, N // 8)}
    weights = {
        "codes": torch.randint(0, 16, (K, N), device="cuda", dtype=torch.uint8),
        "scales": scales(groups, N),
        "zeros": torch.randint(0, 16, (groups, N), device="cuda", dtype=torch.int32),
    }
    linear = torch.nn.Module()
    linear.weight = torch.randn(N, K, device="cuda").to(torch.float8_e4m3fn)
    linear.weight_scale = scales(N, dtype=torch.bfloat16)
    tokens = torch.randn(512, 4096, device="cuda", dtype=torch.bfloat16)
    experts = torch.randn(64, 4096, 1024, device="cuda", dtype=torch.bfloat16)
    return {
        "Block scales": {"offsets": ends},
        "Rows of experts": {
            "experts": experts,
            "tokens": tokens,
            "chosen": torch.rand(512, 64, device="cuda").topk(8, 1).indices,
            "n": 1024,
            "second": torch.randn(64, 1024, 1024, device="cuda", dtype=torch.bfloat16),
        },
        "Narrow weights": {
            **weights,
            "gptq": {**checkpoint, "g_idx": torch.arange(K, device="cuda", dtype=torch.int32) // GROUP},
            "awq": {**checkpoint, "qweight": words(K, N // 8)},
            "packed": {"weight_packed": words(N, K // 8), "weight_scale": scales(N, groups)},
            "bias": scales(N),
            "codes_of_int8": torch.randint(-128, 128, (K, N), device="cuda", dtype=torch.int8),
            "scales_of_columns": scales(N),
            "layer": {
                "blocks": torch.randint(0, 256, (N, K // 32, 16), device="cuda", dtype=torch.uint8),
                "scales": torch.randint(120, 130, (N, K // 32), device="cuda", dtype=torch.uint8),
            },
            "linear": linear,
        },
        "Activations of 8 bits": {**weights, "codes_of_e2m1": weights["codes"]},
        "Sums in float16": {
            "x": torch.randn(256, 128, device="cuda", dtype=torch.float16),
            "w": torch.randn(192, 128, device="cuda", dtype=torch.float16),
            "y": torch.zeros(256, 192, device="cuda", dtype=torch.float16),
        },
    }.get(heading, {})


@needs_gpu
@pytest.mark.parametrize(("heading", "text", "example"), EXAMPLES, ids=[f"{heading}-{at}" for at, (heading, *_) in enumerate(EXAMPLES)])
def test_an_example_runs_as_it_stands(heading: str, text: str, example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in re.findall(r'compile\("(\w+\.yaml)"', example):
        spec = re.search(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        assert spec is not None
        (tmp_path / name).write_text(spec[1])
    names = given(heading)
    major, minor = torch.cuda.get_device_capability()
    exec(example.replace('"sm_89"', f'"sm_{major}{minor}"'), names)  # the page names a GPU of GeForce
    torch.cuda.synchronize()
    for result in (names[name] for name in RESULTS[heading].split()):
        for one in result if isinstance(result, list) else [result]:
            assert torch.isfinite(torch.view_as_real(one) if one.is_complex() else one.float()).all()
