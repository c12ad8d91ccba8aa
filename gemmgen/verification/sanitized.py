"""The cases of an instance for a processor under AddressSanitizer and UndefinedBehaviorSanitizer.

They run in a separate process, which loads the sanitizers' runtime first and ends at their first finding.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from gemmgen.core.errors import EnvironmentMissing, VerificationError
from gemmgen.hardware.cpu import CpuArchitecture
from gemmgen.kernels.family import InstancePlan
from gemmgen.toolchain.host import HostCompiler, find_compiler
from gemmgen.verification.baked_cases import cases_of

SECONDS = 600
MARK = "cases under the sanitizers:"


@dataclass(frozen=True)
class SanitizerReport:
    """Findings of the sanitizers."""

    name: str
    cases: int
    """Cases that ran to their end."""
    finding: str
    """The first thing that they found; empty for nothing."""

    @property
    def passed(self) -> bool:
        return self.cases > 0 and not self.finding


def verify_sanitized(plan: InstancePlan) -> SanitizerReport:
    """Runs all cases of ``plan`` under the sanitizers. Raises ``EnvironmentMissing`` if the compiler has none."""
    runtime = _runtime(find_compiler(cast("CpuArchitecture", plan.architecture)))
    with tempfile.TemporaryDirectory(prefix="gemmgen-") as folder:
        spec = Path(folder, "spec.json")
        spec.write_text(json.dumps(plan.spec.model_dump(mode="json")))
        environment = {
            **os.environ,
            "LD_PRELOAD": runtime,
            "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0",
            "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=0",
            "OPENBLAS_NUM_THREADS": "1",
        }
        command = [sys.executable, "-m", "gemmgen.verification.sanitized", str(spec)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS)
    cases = next((int(line.removeprefix(MARK)) for line in done.stdout.splitlines() if line.startswith(MARK)), 0)
    if done.returncode == 0 and cases:
        return SanitizerReport(plan.name, cases, "")
    marks = ("ERROR: AddressSanitizer", "runtime error", "Error")
    lines = [line for line in done.stderr.splitlines() if any(mark in line for mark in marks)]
    return SanitizerReport(plan.name, cases, (lines or done.stderr.splitlines() or ["it ended without a word"])[0].strip())


def _runtime(compiler: HostCompiler) -> str:
    """The library that has to be loaded first."""
    if compiler.kind == "cc":
        done = subprocess.run([*compiler.command, "-print-file-name=libasan.so"], capture_output=True, text=True)
        path = Path(done.stdout.strip())
        if path.is_absolute() and path.exists():
            return str(path.resolve())
    raise EnvironmentMissing(f"{compiler.version} has no AddressSanitizer library; GCC's is libasan (Debian: apt install gcc)")


def main(path: str) -> None:
    """Runs the cases of the spec in a file, in a process that was started for it."""
    from gemmgen.kernels.planning import plan
    from gemmgen.kernels.spec_files import load_spec
    from gemmgen.runtime.native import NativeBackend
    from gemmgen.toolchain.compilation import compile_host_plan
    from gemmgen.verification.runner import verify_case

    planned = plan(load_spec(json.loads(Path(path).read_text())))
    binary = compile_host_plan(planned, sanitize=True)
    backend = NativeBackend(exact=True)
    cases = cases_of(planned)
    for case in cases:
        result = verify_case(planned, binary, backend, case)
        if not result.passed:
            raise VerificationError(f"{case.name}: {result.failure}")
    print(MARK, len(cases))


if __name__ == "__main__":
    main(sys.argv[1])
