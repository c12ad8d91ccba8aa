"""Builds the library: compiles changed kernels, verifies those without evidence, certifies, and removes kernels that are no longer
listed."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from gemmgen.core.errors import EnvironmentMissing, GemmgenError, VerificationError
from gemmgen.kernels.family import KernelPlan
from gemmgen.kernels.manifest import MANIFEST
from gemmgen.library.certificate import failures, make_certificate, make_manifest, recorded_binaries
from gemmgen.library.compiled import Facts, entries, facts_of, kept_facts
from gemmgen.library.digests import cases_digest, options_digest, program_digests, text_digest
from gemmgen.library.emulator_run import prove
from gemmgen.library.evidence import EMULATOR_FILE, Evidence, Record, emulator_evidence, read_evidence
from gemmgen.library.folder import LibraryFolder, write_file
from gemmgen.library.json_text import to_text
from gemmgen.library.listing import Instance, Listing
from gemmgen.library.moved_lines import moved_record
from gemmgen.library.over_field import FIELD_FILE, field_architecture, field_evidence, quoted_and_missing, run_over_field
from gemmgen.library.workers import cpus, run_tasks

SAVE_SECONDS = 15.0
"""Most work on the emulator that is lost when a build is killed."""

Target = tuple[str, str]
"""Instance and architecture."""
Progress = Callable[[str, int, int], None]
"""Called with a stage, the number of its completed steps and of all."""


@dataclass
class BuildReport:
    """Result of a build. Names of files below the library's folder."""

    compiled: int = 0
    carried: int = 0
    """Programs whose evidence is that of the same machine code from another source or by another name."""
    verified: int = 0
    over_field: int = 0
    """Instances that were run over a finite field."""
    failed: int = 0
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

    ``only``: the names of the instances to see to, the others are left alone, and nothing is removed. ``seed``: a library whose evidence a
    folder without any begins with. Unchanged files are not written again; an interrupted build continues where it stopped. Raises
    ``EnvironmentMissing`` if something has to be compiled and another compiler is installed than the list names, ``VerificationError`` if
    an instance is wrong."""
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
    if stale := _verify(listing, folder, wanted, facts, evidence, jobs, progress, report):
        facts |= compile_facts(listing, stale, jobs, progress)
        report.compiled += len(stale)
        _verify(listing, folder, wanted, facts, evidence, jobs, progress, report)
    instances = list({instance.name: instance for instance, _, _ in wanted}.values())
    _verify_over_field(listing, folder, instances, facts, evidence, jobs, progress, report)

    files: dict[str, str] = {}
    wrong: list[str] = []
    for index, instance in enumerate(instances):
        known = {architecture: facts[instance.name, architecture] for architecture in instance.plans}
        certificate = make_certificate(listing, instance, known, evidence)
        wrong += failures(certificate)
        files[instance.source_file] = instance.source.text
        files[instance.certificate_file] = to_text(certificate)
        progress("certifying", index + 1, len(instances))
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
    options, valid = options_digest(), {}
    recorded = recorded_binaries(folder.certificate(MANIFEST))
    for instance, architecture, plan in targets:
        certificate = folder.section(instance, architecture)
        facts = kept_facts(certificate, instance.source.digest, options, listing.release)
        if facts is None or list(facts.kernels) != list(entries(plan)):
            continue
        if recorded.get((instance.name, architecture), facts.digest) == facts.digest:
            valid[instance.name, architecture] = facts
    return valid


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
    """Compiles instances, through the user's cache, and reads the results.

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


class _Earlier:
    """Evidence of instances as they were: of code that is the same now, but for lines and names."""

    def __init__(self, listing: Listing, folder: LibraryFolder, evidence: Evidence) -> None:
        self._listing, self._folder = listing, folder
        self._records: dict[str, list[Record]] = {}
        for record in evidence.emulator.values():
            self._records.setdefault(record["cases"], []).append(record)
        self._names = {instance.name for instance in listing.instances}

    @cached_property
    def _texts(self) -> dict[str, str]:
        """The sources that lie in the folder, by digest."""
        files = (name for name in self._folder.own_files() if not name.endswith(".json"))
        return {text_digest(text): text for name in files if (text := self._folder.text(name)) is not None}

    def record(self, instance: Instance, architecture: str, facts: Facts, cases: str) -> Record | None:
        """The record of the same code on the same cases, by the lines of the source as it is now; None if nothing was."""
        options, alike = options_digest(), self._records.get(cases, ())
        before = kept_facts(self._folder.section(instance, architecture), None, options, self._listing.release)
        for known in alike:
            code = self._code_under(known, instance, architecture, facts)
            old = self._texts.get(known["source"]) or self._folder.text(instance.source_file)
            if known["code"] != code or old is None:
                continue
            moved = moved_record(
                [known], replace(facts, code=code), cases, options, old, instance.source.text, before.program if before else None
            )
            if moved is not None:
                formerly = sorted({*known.get("formerly", ()), code} - {facts.code})
                return {**moved, "instance": instance.name, "code": facts.code} | ({"formerly": formerly} if formerly else {})
        return None

    def _code_under(self, known: Record, instance: Instance, architecture: str, facts: Facts) -> str:
        """The digest that the instance's code had by the name of a record's instance, if that is one that the list has no more."""
        if known["instance"] == instance.name or known["instance"] in self._names:
            return facts.code
        from gemmgen.toolchain.compilation import compile_plan

        return program_digests(compile_plan(instance.plans[architecture]).ptx, instance.name, known["instance"])["code"]


def _verify(
    listing: Listing,
    folder: LibraryFolder,
    targets: Collection[tuple[Instance, str, KernelPlan]],
    facts: dict[Target, Facts],
    evidence: Evidence,
    jobs: int,
    progress: Progress,
    report: BuildReport,
) -> list[tuple[Instance, str, KernelPlan]]:
    """Carries evidence over to code that is the same, runs every program that is left on the emulator, and writes the evidence.

    Returns the targets of which ``facts`` turned out to be stale: the compiler now makes another program, although it has the release that
    their certificates name.
    """
    earlier = _Earlier(listing, folder, evidence)
    used: dict[tuple[str, str], Record] = {}
    missing: dict[tuple[str, str], tuple[Path, str]] = {}
    for instance, architecture, plan in targets:
        key = (facts[instance.name, architecture].program, cases_digest(plan))
        if key in evidence.emulator:
            used[key] = evidence.emulator[key]
        elif moved := earlier.record(instance, architecture, facts[instance.name, architecture], key[1]):
            used[key] = moved
            evidence.add(moved)
            report.carried += 1
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
    asked, stale = list(missing), set()
    try:
        for done, (index, result) in enumerate(run_tasks(prove, list(missing.values()), jobs)):
            if isinstance(result, GemmgenError):
                errors.append(str(result))
                report.failed += 1
            elif isinstance(result, Exception):
                raise result
            else:
                evidence.add(result)
                records[result["program"], result["cases"]] = result
                if result["program"] != asked[index][0]:
                    stale.add(asked[index][0])
                report.verified += 1
            progress("verifying", done + 1, len(missing))
            if time.monotonic() - saved > SAVE_SECONDS:
                save({**evidence.emulator, **records})
                saved = time.monotonic()
    except BaseException:
        save({**evidence.emulator, **records})
        raise
    save(records)
    if errors:
        summary = f"{report.carried} carried over, {report.verified} verified, {report.failed} failed:"
        raise VerificationError("\n".join([summary, *errors]))
    return [target for target in targets if facts[target[0].name, target[1]].program in stale]


def _verify_over_field(
    listing: Listing,
    folder: LibraryFolder,
    instances: Collection[Instance],
    facts: dict[Target, Facts],
    evidence: Evidence,
    jobs: int,
    progress: Progress,
    report: BuildReport,
) -> None:
    """Runs every instance over a finite field of which no record is kept, and writes the records."""
    quoted, missing = quoted_and_missing(evidence, instances, facts)
    if missing and not compiler_fits(listing):
        labels = ", ".join(instance.label for instance in missing[:3])
        raise EnvironmentMissing(f"{labels} and others must be run over a finite field; install {how_to_get_compiler(listing)}")
    # Records of instances that this build was not asked for stay.
    records = list(evidence.over_field) if len(instances) < len(listing.instances) else quoted

    def save(kept: list[Record]) -> None:
        if kept:
            write_file(folder.evidence / FIELD_FILE, field_evidence(kept))

    saved = time.monotonic()
    tasks = [(instance.path, field_architecture(instance.plans)) for instance in missing]
    try:
        for done, (_, result) in enumerate(run_tasks(run_over_field, tasks, jobs)):
            if isinstance(result, Exception):
                raise result
            evidence.add(result)
            records.append(result)
            report.over_field += 1
            progress("running over a finite field", done + 1, len(tasks))
            if time.monotonic() - saved > SAVE_SECONDS:
                save(records)
                saved = time.monotonic()
    finally:
        save(records)


def _prune(folder: LibraryFolder, expected: Collection[str]) -> list[str]:
    """Removes gemmgen's own files that nothing needs any more; never anything else."""
    gone = [name for name in folder.own_files() if name not in expected]
    for name in gone:
        try:
            (folder.path / name).unlink(missing_ok=True)
            for parent in (folder.path / name).parents:
                if parent == folder.path or any(parent.iterdir()):
                    break
                parent.rmdir()
        except OSError as error:
            raise GemmgenError(f"{folder.path / name}: cannot be removed: {error.strerror or error}") from None
    return gone


def _copy_evidence(source: Path, target: Path) -> None:
    for path in sorted(source.glob("*.json")):
        write_file(target / path.name, path.read_text(encoding="utf-8"))
