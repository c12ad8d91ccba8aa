"""JSON Schemas of the output of commands with --json: python docs/output_schemas.py [COMMAND ...]

Each is inferred from real outputs of several calls: keys that all of them have are required, and further keys may come. They lie in
gemmgen/cli/schemas/; ``gemmgen schema --of COMMAND`` prints one. VERSION grows when a key is renamed, removed or changes its type.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

VERSION = 1
ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "gemmgen" / "cli" / "schemas"

_CU = str(ROOT / "docs" / "tutorials" / "reverse.cu")
_PROGRAM = str(ROOT / "tests" / "sanitizer" / "whole_programs.cu")
_LAUNCH = "--grid 1 --block 64 --arg f32[64]=range --arg f32[64]"
_PROBLEMS = str(ROOT / "docs" / "tutorials" / "problems.txt")
_UNTIMED = str(ROOT / "docs" / "tutorials" / "problems_untimed.txt")
_JUDGED = ROOT / "docs" / "tutorials" / "judge"
_TASK = f"--task {_JUDGED / 'task.yaml'} --reference {_JUDGED / 'reference.py'}:gemm --shapes m=16,n=24,k=32"
_SWEEP = str(ROOT / "docs" / "tutorials" / "stages.yaml")

_CERTIFIED = (
    "reduction/argmax_vocabulary_bf16",
    "gemm/wgmma/bf16/128x128",
    "gemm/v0_naive",
    "conv2d/mma_sync/residual",
    "conv2d/wgmma/f16/128x128",
    "gemm/mma_sync/bf16/128x128_k16",
    "reduction/layernorm_moments_f16",
    "reduction/s4_unroll_last_warp",
)

CALLS = {
    "analyze": [
        "analyze gemm/v1_tiled reduction/s0_interleaved conv2d/mma_sync/split_k",
        "analyze gemm/v1_tiled --no-traffic --time 3ms",
        "analyze cpu/c0_naive cpu/c3_packed",
    ],
    "banks": ["banks lane*16 --width 16", "banks lane*128 --store"],
    "cache-info": ["cache info"],
    "check": [
        "check gemm/v0_naive cpu/c0_naive",
        "check gemm/v0_naive --arch sm_80 --arch sm_90",
        "check gemm/v0_naive --set mainloop.stages=9",
        "check gemm/v3_double_buffer --set mainloop.tile.threadblock.k=7",
    ],
    "compile": ["compile gemm/v0_naive", "compile conv2d/mma_sync/split_k --arch sm_80 --arch sm_90", "compile cpu/c0_naive"],
    "diff": ["diff gemm/v0_naive gemm/v1_tiled", "diff gemm/v1_tiled gemm/v1_tiled", f"diff {_CU} {_CU}"],
    "doctor": ["doctor"],
    "draw": ["draw gemm/v1_tiled", "draw reduction/s0_interleaved"],
    "emulate": [f"emulate {_CU} {_LAUNCH}", f"emulate {_CU.replace('reverse', 'reverse_fixed')} {_LAUNCH} --counters --print out"],
    "explain": ["explain gemm/v0_naive", "explain conv2d/mma_sync/split_k", "explain cpu/c3_packed", "explain --problem gemm:64,64,64"],
    "export": [
        "export gemm/v0_naive --format header -o kernel.h",
        "export gemm/v0_naive --format python -o kernel.py",
        "export cpu/c0_naive --format header -o host.h",
    ],
    "judge": [f"judge {_JUDGED / name} {_TASK}" for name in ("candidate.cu", "candidate_fixed.cu")],
    "library-check": ["library check --sample 0"],
    "library-list": ["library list"],
    "library-show": [*(f"library show {name}" for name in _CERTIFIED)],
    "plan-model": [f"plan-model {_PROBLEMS} --device H200", f"plan-model {_UNTIMED} --device T4"],
    "prove": ["prove gemm/v0_naive", "prove reduction/s8_streaming"],
    "render": ["render gemm/v0_naive gemm/v1_tiled -o sources"],
    "run": [f"run --json {_PROGRAM} -- {mode}" for mode in ("features", "race", "unsupported", "twice", "streams", "bounds")],
    "sweep": [f"sweep {_SWEEP} --stages compile", f"sweep {_SWEEP} --stages check --against stages.sqlite"],
    "sweep-dry-run": [f"sweep {_SWEEP} --dry-run"],
    "sweep-results": ["sweep --results stages.sqlite"],
    "verify": ["verify gemm/v0_naive --backend emulator --counters", "verify elementwise/relu --backend emulator", "verify cpu/c0_naive"],
    "warm": ["warm gemm:512,512,512,nt gemm:4096,4096,4096,nt,bf16 --device H200"],
}
"""Calls whose outputs a schema is inferred from, without --json, run one after the other in an empty folder. ``library check`` may find
problems, and then says so in the same form."""

RECORDED = {"bench": ["bench_gemm", "bench_reduction", "bench_cpu"], "tune": ["tune"], "tune-evaluate": ["evaluate"]}
"""Outputs of commands that need a GPU or a quiet machine, recorded on an H200 and on an EPYC in docs/recorded/."""

_NAMED_BY_DATA = 12
"""Objects with more keys than this, all of one form, are mappings whose keys are data."""


_FREE = {
    "spec": "a spec, as of `gemmgen schema`",
    "axes": "the value at each axis, by the path of its field",
    "base": "the fields of a spec",
    "ratios": "times beside each other's, by the names of both",
    "quartiles": "first and third quartile of these over the rounds",
    "problem": "sizes by the names of the dimensions",
    "shape": "sizes by their names in the task",
    "shapes": "sizes by their names in the task",
    "counterexample": "sizes and a thread for which the statement seems not to hold; null if none was found",
}
"""Objects whose keys belong to a spec or to a file of the user's or are names of kernels, by the key that they are the value of, or that
their list is. Any of them may be null where one is or all are."""


def output(call: str) -> Any:
    """The output of a call with --json."""
    from click.testing import CliRunner

    from gemmgen.cli import cli

    words = call.split()
    result = CliRunner().invoke(cli, words if "--json" in words else [*words, "--json"], prog_name="gemmgen")
    return json.loads(result.stdout)


def inferred(values: list[Any], of: str = "") -> dict[str, Any]:
    """The schema that all ``values`` meet, which are those of a key."""
    if of in _FREE and values and all(isinstance(value, dict | None) for value in values):
        return {"type": ["null", "object"] if None in values else "object", "description": _FREE[of]}
    kinds = sorted({_kind(value) for value in values})
    if "number" in kinds and "integer" in kinds:
        kinds.remove("integer")
    schema: dict[str, Any] = {"type": kinds[0] if len(kinds) == 1 else kinds}
    lists = [item for value in values if isinstance(value, list) for item in value]
    if lists:
        schema["items"] = inferred(lists, of)
    objects = [value for value in values if isinstance(value, dict)]
    if objects:
        keys = {key: None for value in objects for key in value}
        always = [key for key in keys if all(key in value for value in objects)]
        members = [member for value in objects for member in value.values()]
        if not always or (len(keys) > _NAMED_BY_DATA and len({_kind(member) for member in members}) == 1):
            if members:
                schema["additionalProperties"] = inferred(members)
        else:
            schema["properties"] = {key: inferred([value[key] for value in objects if key in value], key) for key in keys}
            schema["required"] = always
    return schema


def _kind(value: Any) -> str:
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object", type(None): "null"}
    return names[type(value)]


def schema_of(name: str) -> dict[str, Any]:
    """The schema of one command's outputs."""
    if name in RECORDED:
        found = inferred([json.loads((ROOT / "docs" / "recorded" / f"{one}.json").read_text()) for one in RECORDED[name]])
    else:
        found = inferred([output(call) for call in CALLS[name]])
    words = name.replace("-dry-run", " --dry-run").replace("-results", " --results FILE").replace("-evaluate", " --evaluate TABLE")
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"Output of gemmgen {words.replace('-', ' ', 1) if '--' not in words else words} --json",
        "schema_version": VERSION,
    }
    return {**head, **found}


def main(names: list[str]) -> int:
    """Writes all schemas, or those of some commands."""
    from gemmgen.library.json_text import to_text

    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for name in names or [*CALLS, *RECORDED]:
            (FOLDER / f"{name}.json").write_text(to_text(schema_of(name)))
            print(name)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
