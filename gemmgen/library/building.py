"""Builds the library: compiles what changed, verifies what has no evidence, certifies, and removes what is no longer listed."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from gemmgen.core.errors import EnvironmentMissing, GemmgenError, VerificationError
from gemmgen.kernels.family import KernelPlan
from gemmgen.kernels.manifest import MANIFEST
from gemmgen.library.certificate import certificate_name, failures, make_certificate, make_manifest, recorded_binaries
from gemmgen.library.compiled import Facts, entries, facts_of, kept_facts
from gemmgen.library.digests import cases_digest, options_digest, text_digest
from gemmgen.library.emulator_run import prove
from gemmgen.library.evidence import EMULATOR_FILE, Evidence, Record, emulator_evidence, read_evidence
from gemmgen.library.folder import LibraryFolder, write_file
from gemmgen.library.json_text import to_text
from gemmgen.library.listing import Instance, Listing
from gemmgen.library.moved_lines import moved_record
from gemmgen.library.workers import cpus, run_tasks

SAVE_SECONDS = 15.0
"""Most work on the emulator that is lost when a build is killed."""

Target = tuple[str, str]
"""Instance and architecture."""
Progress = Callable[[str, int, int], None]
"""Told a stage, and how many of its steps are done of how many."""


@dataclass
class BuildReport:
    """Result of a build. Names of files below the library's folder."""

    compiled: int = 0
    verified: int = 0
    written: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    unchanged: int = 0


def build(
    listing: Listing,
    folder: LibraryFolder,
    *,
    only: Collection[str] | None = None,
    seed: LibraryFolder | None = None,
    jobs: int | None = None,
    progress: Progress = lambda *_: None,
) -> BuildReport:
    """Brings the library in ``folder`` up to date with its list.

    ``only``: the names of the instances to see to, the others are left alone, and nothing is removed. ``seed``: a library whose
    evidence a folder without any begins with. What is the same is not written again; a build that was interrupted goes on
    where it was. Raises ``EnvironmentMissing`` if something has to be compiled and another compiler is installed than the
    list names, ``VerificationError`` if an instance is wrong.
    """
    report = BuildReport()
    jobs = jobs or cpus()
    if seed is not None and not folder.evidence.exists() and seed.evidence.is_dir():
        _copy_evidence(seed.evidence, folder.evidence)
    wanted = [target for target in listing.targets() if only is None or target[0].name in only]
    evidence = read_evidence(folder.evidence)
    facts = keep_facts(listing, folder, wanted)
    missing = [target for target in wanted if (target[0].name, target[1]) not in facts]
    facts |= compile_facts(listing, missing, jobs, progress)
    report.compiled = len(missing)
    report.verified = _verify(listing, folder, wanted, facts, evidence, jobs, progress)

    files: dict[str, str] = {}
    wrong: list[str] = []
    for index, (instance, architecture, _) in enumerate(wanted):
        certificate = make_certificate(listing, instance, architecture, facts[instance.name, architecture], evidence)
        wrong += failures(certificate)
        files[instance.source.file_name] = instance.source.text
        files[certificate_name(instance.name, architecture)] = to_text(certificate)
        progress("certifying", index + 1, len(wanted))
    binaries = recorded_binaries(folder.certificate(MANIFEST)) | {target: known.digest for target, known in facts.items()}
    files[MANIFEST] = to_text(make_manifest(listing, binaries))
    for name, text in files.items():
        if write_file(folder.path / name, text):
            report.written.append(name)
        else:
            report.unchanged += 1
    if only is None:
        report.removed = _prune(folder, files)
    if wrong:
        raise VerificationError("\n  - ".join(["the library is built, but its evidence speaks against it:", *wrong]))
    return report


def keep_facts(listing: Listing, folder: LibraryFolder, targets: Iterable[tuple[Instance, str, KernelPlan]]) -> dict[Target, Facts]:
    """The compiler's part of the folder's certificates, where it is still true and recorded by the manifest."""
    options, kept = options_digest(), {}
    recorded = recorded_binaries(folder.certificate(MANIFEST))
    for instance, architecture, plan in targets:
        certificate = folder.certificate(certificate_name(instance.name, architecture))
        facts = kept_facts(certificate, instance.source.digest, options, listing.release)
        if facts is None or list(facts.kernels) != list(entries(plan)):
            continue
        if recorded.get((instance.name, architecture), facts.digest) == facts.digest:
            kept[instance.name, architecture] = facts
    return kept


def compiler_fits(listing: Listing) -> bool:
    """True if the compiler at hand is of the release that the list names."""
    from gemmgen.toolchain.nvrtc import nvrtc_version

    try:
        return nvrtc_version() == listing.compiler
    except EnvironmentMissing:
        return False


def how_to_get_compiler(listing: Listing) -> str:
    """Installation advice for compiling for the library."""
    major, minor = listing.compiler
    return f"NVRTC {listing.release}, which {listing.path.name} names: pip install 'nvidia-cuda-nvrtc=={major}.{minor}.*'"


def compile_facts(
    listing: Listing, targets: Collection[tuple[Instance, str, KernelPlan]], jobs: int, progress: Progress = lambda *_: None
) -> dict[Target, Facts]:
    """Compiles instances, through the user's cache, and reads what became of them.

    Raises ``EnvironmentMissing`` if there is something to compile and the compiler is of another release than the list names.
    """
    if not targets:
        return {}
    if not compiler_fits(listing):
        labels = list(dict.fromkeys(instance.label for instance, _, _ in targets))
        shown = ", ".join(labels[:3]) + (f" and {len(labels) - 3} more" if len(labels) > 3 else "")
        raise EnvironmentMissing(
            f"{shown} must be compiled, by the release that all certificates are made with; install " + how_to_get_compiler(listing)
        )
    from concurrent.futures import ThreadPoolExecutor, as_completed

    from gemmgen.toolchain.compilation import compile_plan

    facts: dict[Target, Facts] = {}
    with ThreadPoolExecutor(jobs) as pool:
        futures = {pool.submit(compile_plan, plan): (instance.name, name, plan) for instance, name, plan in targets}
        try:
            for done, future in enumerate(as_completed(futures)):
                instance_name, architecture, plan = futures[future]
                facts[instance_name, architecture] = facts_of(plan, future.result())
                progress("compiling", done + 1, len(futures))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return facts


def _moved(
    listing: Listing, instance: Instance, architecture: str, folder: LibraryFolder, evidence: Evidence, facts: Facts, cases: str
) -> Record | None:
    """The evidence of an instance whose lines have moved since, but not its code."""
    path = folder.path / instance.source.file_name
    old = path.read_text(encoding="utf-8") if path.is_file() else instance.source.text
    if old == instance.source.text:
        return None
    about = [record for record in evidence.emulator.values() if record["instance"] == instance.name]
    options = options_digest()
    certificate = folder.certificate(certificate_name(instance.name, architecture))
    before = kept_facts(certificate, text_digest(old), options, listing.release)
    return moved_record(about, facts, cases, options, old, instance.source.text, before.program if before else None)


def _verify(
    listing: Listing,
    folder: LibraryFolder,
    targets: Collection[tuple[Instance, str, KernelPlan]],
    facts: dict[Target, Facts],
    evidence: Evidence,
    jobs: int,
    progress: Progress,
) -> int:
    """Runs every program for which there is no evidence on the emulator, and writes its evidence; returns how many it ran."""
    used: dict[tuple[str, str], Record] = {}
    missing: dict[tuple[str, str], tuple[Path, str]] = {}
    for instance, architecture, plan in targets:
        key = (facts[instance.name, architecture].program, cases_digest(plan))
        if key in evidence.emulator:
            used[key] = evidence.emulator[key]
        elif moved := _moved(listing, instance, architecture, folder, evidence, facts[instance.name, architecture], key[1]):
            used[key] = moved
            evidence.add(moved)
        else:
            missing.setdefault(key, (instance.path, architecture))
    if missing and not compiler_fits(listing):
        labels = ", ".join(str(path.stem) for path, _ in list(missing.values())[:3])
        raise EnvironmentMissing(f"{labels} and others must be verified; install {how_to_get_compiler(listing)}")
    # Those of instances that this build was not asked for stay; those that no instance needs go.
    partial = len({instance.name for instance, _, _ in targets}) < len(listing.instances)
    records = dict(evidence.emulator) if partial else used

    def save(kept: dict[tuple[str, str], Record]) -> None:
        write_file(folder.evidence / EMULATOR_FILE, emulator_evidence(kept.values()))

    errors, saved = [], time.monotonic()
    try:
        for done, (_, result) in enumerate(run_tasks(prove, list(missing.values()), jobs)):
            if isinstance(result, GemmgenError):
                errors.append(str(result))
            elif isinstance(result, Exception):
                raise result
            else:
                evidence.add(result)
                records[result["program"], result["cases"]] = result
            progress("verifying", done + 1, len(missing))
            if time.monotonic() - saved > SAVE_SECONDS:
                save({**evidence.emulator, **records})
                saved = time.monotonic()
    except BaseException:
        save({**evidence.emulator, **records})
        raise
    save(records)
    if errors:
        raise VerificationError("\n".join(errors))
    return len(missing)


def _prune(folder: LibraryFolder, expected: Collection[str]) -> list[str]:
    """Removes gemmgen's own files that nothing needs any more; never anything else."""
    gone = [name for name in folder.own_files() if name not in expected]
    for name in gone:
        try:
            (folder.path / name).unlink(missing_ok=True)
        except OSError as error:
            raise GemmgenError(f"{folder.path / name}: cannot be removed: {error.strerror or error}") from None
    return gone


def _copy_evidence(source: Path, target: Path) -> None:
    for path in sorted(source.glob("*.json")):
        write_file(target / path.name, path.read_text(encoding="utf-8"))
