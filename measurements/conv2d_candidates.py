"""The sweep over convolution instances: tiles and pipelines, each specialised for one layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gemmgen import api
from gemmgen.codegen.rendering import render
from gemmgen.core.errors import PlanError
from gemmgen.kernels.conv2d.plan import Conv2dPlan
from gemmgen.toolchain.compilation import COMPILE_OPTIONS
from gemmgen.toolchain.nvrtc import Binary, CompileJob, compile_many

Layer = tuple[int, int, int, int, int]
"""c, h = w, k, r = s, stride; the padding is r // 2."""


@dataclass(frozen=True)
class Candidate:
    """One point of the sweep: the fields of a spec beside the layer."""

    m: int
    n: int
    k: int
    warp_m: int
    warp_n: int
    stages: int
    blocks: int = 1
    split_k: int = 1
    gemm_m: str = "pixels"
    store: str = "direct"
    rasterization: str = "channels_first"
    input_cache: str = "l2"
    persistent: int = 0
    """Blocks for each multiprocessor that take tile after tile; 0: a block for each tile."""
    float_conversion: str = "instruction"
    batches: tuple[int, ...] = (16, 128)

    @property
    def name(self) -> str:
        """Text for the table."""
        parts = [f"{self.m}x{self.n}x{self.k}", f"w{self.warp_m}x{self.warp_n}", f"s{self.stages}", f"b{self.blocks}"]
        parts += [f"split{self.split_k}"] if self.split_k > 1 else []
        parts += ["channels"] if self.gemm_m != "pixels" else []
        parts += ["shared"] if self.store != "direct" else []
        parts += [f"p{self.persistent}"] if self.persistent else []
        parts += ["addition"] if self.float_conversion == "addition" else []
        parts += ["l1"] if self.input_cache == "l1" else []
        parts += ["pixels_first"] if self.rasterization != "channels_first" else []
        return "_".join(parts)

    def spec(self, layer: Layer, sm_count: int) -> dict[str, Any]:
        """The instance for one layer, all of whose parameters it is specialised for."""
        c, _, k, r, stride = layer
        return {
            "kind": "conv2d",
            "architecture": "sm_80",
            "gemm_m": self.gemm_m,
            "tile": {
                "threadblock": {"m": self.m, "n": self.n, "k": self.k},
                "warp": {"m": self.warp_m, "n": self.warp_n},
                "instruction": "m16n8k32",
            },
            "stages": self.stages,
            "input_cache": self.input_cache,
            "convolution": {
                "c": c,
                "k": k,
                "r": r,
                "s": r,
                "stride_h": stride,
                "stride_w": stride,
                "padding_h": r // 2,
                "padding_w": r // 2,
                "dilation_h": 1,
                "dilation_w": 1,
            },
            "bias": "f32",
            "activation": {"op": "relu"},
            "store": self.store,
            "split_k": self.split_k,
            "rasterization": self.rasterization,
            "float_conversion": self.float_conversion,
            "persistent_blocks": self.persistent * sm_count or None,
            "min_blocks_per_sm": self.blocks,
        }


CANDIDATES = (
    Candidate(256, 128, 64, 64, 64, 3),
    Candidate(256, 128, 64, 64, 64, 4),
    Candidate(256, 128, 64, 64, 64, 3, input_cache="l1"),
    Candidate(128, 256, 64, 64, 64, 3),
    Candidate(128, 128, 64, 64, 64, 3, 2),
    Candidate(128, 128, 64, 64, 64, 4, 2),
    Candidate(128, 128, 64, 64, 64, 3, 2, input_cache="l1"),
    Candidate(128, 128, 64, 64, 32, 4, 1),
    Candidate(128, 128, 128, 64, 64, 3, 2),
    Candidate(256, 64, 64, 64, 64, 3, 2),
    Candidate(256, 64, 64, 64, 64, 3, 2, input_cache="l1"),
    Candidate(128, 64, 64, 64, 32, 3, 4),
    Candidate(128, 64, 64, 64, 32, 6, 3),
    Candidate(128, 64, 64, 64, 32, 3, 3, input_cache="l1"),
    Candidate(128, 64, 64, 32, 64, 2, 4),
    Candidate(64, 128, 64, 32, 64, 3, 4),
    Candidate(64, 256, 64, 32, 64, 2, 2),
    Candidate(64, 64, 64, 32, 32, 2, 6),
    Candidate(64, 64, 64, 32, 32, 4, 5),
    Candidate(64, 64, 64, 32, 32, 4, 5, input_cache="l1"),
    Candidate(64, 64, 128, 32, 32, 4, 3),
    Candidate(128, 32, 64, 32, 32, 4, 4, batches=(16,)),
    Candidate(64, 32, 128, 32, 32, 4, 4, batches=(16,)),
    Candidate(128, 64, 64, 32, 32, 6, 2, batches=(16,)),
    Candidate(128, 64, 128, 32, 32, 4, 1, batches=(16,)),
    Candidate(64, 128, 128, 32, 32, 4, 1, batches=(16,)),
    Candidate(64, 64, 128, 32, 32, 6, 2, batches=(16,)),
    Candidate(64, 64, 128, 16, 32, 4, 2, batches=(16,)),
    Candidate(64, 64, 256, 16, 32, 3, 2, batches=(16,)),
    Candidate(128, 128, 128, 64, 32, 3, 1),
    Candidate(128, 64, 64, 64, 32, 4, 3, persistent=4),
    Candidate(128, 64, 64, 64, 32, 4, 3, persistent=3),
    Candidate(128, 64, 64, 64, 32, 4, 3, persistent=4, float_conversion="addition"),
    Candidate(128, 128, 64, 64, 32, 4, 2, persistent=2),
    Candidate(128, 128, 64, 64, 64, 4, 2, persistent=2),
    Candidate(128, 128, 128, 64, 64, 3, 2, persistent=2, batches=(128,)),
    Candidate(256, 64, 64, 64, 32, 3, 2, persistent=2),
    Candidate(64, 64, 64, 32, 32, 4, 5, persistent=5),
    Candidate(64, 128, 64, 32, 64, 3, 3, persistent=3),
    Candidate(64, 256, 64, 32, 64, 3, 1, persistent=2),
    Candidate(64, 64, 64, 32, 32, 4, 5, rasterization="pixels_first"),
    Candidate(64, 64, 128, 32, 32, 3, 4, split_k=2, batches=(16,)),
    Candidate(64, 64, 128, 32, 32, 3, 4, split_k=4, batches=(16,)),
    Candidate(128, 128, 64, 64, 64, 4, 2, gemm_m="output_channels", store="shared", batches=(128,)),
)
"""The sweep. Left out for a layer: tiles with more channels or a deeper step than it has, the L1 for a single tap, and
additions for sums that are too long for them."""


def compile_candidates(
    layers: Sequence[Layer], architecture: str, sm_count: int
) -> dict[tuple[Layer, Candidate], tuple[Conv2dPlan, Binary]]:
    """Every candidate that can work, for every layer; those that share a spec share a binary."""
    plans: dict[tuple[Layer, Candidate], Conv2dPlan] = {}
    for layer in layers:
        for candidate in CANDIDATES:
            channels = candidate.n if candidate.gemm_m == "pixels" else candidate.m
            deep = layer[0] * layer[3] ** 2 > 256
            useless = (candidate.input_cache == "l1" and layer[3] == 1) or (candidate.float_conversion == "addition" and deep)
            if useless or channels > layer[2] or candidate.k > layer[0] * layer[3] ** 2:
                continue
            try:
                plan = api.plan(candidate.spec(layer, sm_count), architecture)
            except PlanError as error:
                print(f"{candidate.name}: {'; '.join(map(str, error.reasons))}")
                continue
            assert isinstance(plan, Conv2dPlan)
            plans[layer, candidate] = plan
    unique = {plan.name: plan for plan in plans.values()}
    jobs = [CompileJob(render(plan).text, architecture, COMPILE_OPTIONS, f"{plan.name}.cu") for plan in unique.values()]
    binaries: dict[str, Binary] = {}
    for name, binary in zip(unique, compile_many(jobs), strict=True):
        if not isinstance(binary, Binary):
            raise binary
        spilled = [entry for entry, used in binary.resources.items() if used.spill_loads or used.spill_stores]
        if spilled:
            print(f"{name} spills registers")
        binaries[name] = binary
    return {key: (plan, binaries[plan.name]) for key, plan in plans.items()}
