"""Checks that the library is current: every file equals the output of a build, and a sample is compiled and verified again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from gemmgen.core.errors import EnvironmentMissing, GemmgenError, SpecError
from gemmgen.kernels.manifest import MANIFEST
from gemmgen.library.building import compile_facts, compiler_fits, how_to_get_compiler, keep_facts
from gemmgen.library.certificate import failures, make_certificate, make_manifest, recorded_binaries
from gemmgen.library.compiled import Facts
from gemmgen.library.digests import cases_digest, digest
from gemmgen.library.emulator_run import prove
from gemmgen.library.evidence import EMULATOR_FILE, Evidence, emulator_evidence, read_evidence
from gemmgen.library.folder import EVIDENCE, TUNED, LibraryFolder
from gemmgen.library.json_text import to_text
from gemmgen.library.listing import Instance, Listing
from gemmgen.library.over_field import FIELD_FILE, field_evidence, quoted_and_missing
from gemmgen.library.workers import cpus, run_tasks

Progress = Callable[[str, int, int], None]

_WITHOUT_FACTS = "it belongs to another source, other options or another compiler, or its compiler output differs from the manifest"


_NOT_NEEDED = "no instance on the list needs it"


@dataclass(frozen=True)
class Problem:
    """A file that is not as it should be, below the library's folder."""

    file: str
    state: str
    """``missing``, ``damaged``, ``stale``, ``extra``, ``unverified``, ``wrong`` or ``unchecked``."""
    why: str
    cause: str = ""
    """Words that problems of the same cause have in common; empty for one that stands alone."""


@dataclass
class CheckReport:
    """Findings of a check."""

    files: int = 0
    """Files that should be there."""
    compiled: int = 0
    """Certificates whose binary facts were held against the compiler."""
    verified: int = 0
    """Programs that were verified again."""
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return not self.problems

    def by_cause(self) -> list[list[Problem]]:
        """The problems, those of one cause together."""
        groups: dict[object, list[Problem]] = {}
        for number, problem in enumerate(self.problems):
            groups.setdefault((problem.state, problem.cause) if problem.cause else number, []).append(problem)
        return list(groups.values())


def check(
    listing: Listing,
    folder: LibraryFolder,
    *,
    sample: int | None = 4,
    allow_uncompiled: bool = False,
    jobs: int | None = None,
    progress: Progress = lambda *_: None,
) -> CheckReport:
    """Compares the library in ``folder`` with its list, and compiles and verifies ``sample`` instances again (None: all).

    Which ones depends on the sources alone. Without the compiler that the list names nothing can be compiled: a problem, unless
    nothing was to be compiled or ``allow_uncompiled``, and then a note.
    """
    report, jobs = CheckReport(), jobs or cpus()
    if not folder.path.is_dir():
        report.problems.append(Problem(".", "missing", f"there is no folder {folder.path}"))
        return report
    evidence = read_evidence(folder.evidence)
    facts = keep_facts(listing, folder, listing.targets())
    _compare_files(listing, folder, facts, evidence, report)
    _compare_evidence(listing, folder, facts, evidence, report)
    _read_tables(folder, report)
    if not compiler_fits(listing):
        why = f"sources, certificates and manifest were compared; nothing was compiled, which needs {how_to_get_compiler(listing)}"
        if sample == 0 or allow_uncompiled:
            report.notes.append(why)
        else:
            report.problems.append(Problem(".", "unchecked", f"{why}; --allow-uncompiled takes that for enough"))
        return report
    ordered = sorted(listing.instances, key=lambda instance: digest(instance.source.digest))
    _check_again(listing, ordered[:sample], facts, evidence, report, jobs, progress)
    return report


def _compare_files(
    listing: Listing, folder: LibraryFolder, facts: dict[tuple[str, str], Facts], evidence: Evidence, report: CheckReport
) -> None:
    """Compares every file with the output of a build."""
    binaries = recorded_binaries(folder.certificate(MANIFEST)) | {target: known.digest for target, known in facts.items()}
    expected: dict[str, str | None] = {MANIFEST: to_text(make_manifest(listing, binaries))}
    for instance in listing.instances:
        expected[instance.source_file] = instance.source.text
        known = {name: facts[instance.name, name] for name in instance.plans if (instance.name, name) in facts}
        expected[instance.certificate_file] = None
        if len(known) == len(instance.plans):
            certificate = make_certificate(listing, instance, known, evidence)
            expected[instance.certificate_file] = to_text(certificate)
            report.problems += [Problem(instance.certificate_file, "wrong", why) for why in failures(certificate)]
    report.files = len(expected)
    for name, text in sorted(expected.items()):
        stored = folder.text(name)
        if stored is None:
            there = (folder.path / name).exists()
            why = "it cannot be read as text" if there else "the list of the library asks for it"
            report.problems.append(Problem(name, "damaged" if there else "missing", why, why))
        elif text is None:
            report.problems.append(Problem(name, "stale", _WITHOUT_FACTS, _WITHOUT_FACTS))
        elif stored != text:
            cause = "a build writes other content" if name.endswith(".json") else "templates, plan or spec give another source now"
            report.problems.append(Problem(name, "stale", _first_difference(stored, text), cause))
    report.problems += [Problem(name, "extra", _NOT_NEEDED, _NOT_NEEDED) for name in folder.own_files() if name not in expected]


def _compare_evidence(
    listing: Listing, folder: LibraryFolder, facts: dict[tuple[str, str], Facts], evidence: Evidence, report: CheckReport
) -> None:
    """Every program has been verified on the emulator, and the file says nothing of others."""
    used = {}
    for instance, architecture, plan in listing.targets():
        known = facts.get((instance.name, architecture))
        if known is None:
            continue
        key = (known.program, cases_digest(plan))
        if key in evidence.emulator:
            used[key] = evidence.emulator[key]
        else:
            why = "there is no record of a verification of this program on these cases"
            report.problems.append(Problem(instance.certificate_file, "unverified", f"{architecture}: {why}", why))
    compiled = [instance for instance in listing.instances if all((instance.name, name) in facts for name in instance.plans)]
    quoted, missing = quoted_and_missing(evidence, compiled, facts)
    why = "there is no record of a run of this instance over a finite field"
    report.problems += [Problem(instance.certificate_file, "unverified", why, why) for instance in missing]
    if report.problems:
        return
    why = "it holds records that no instance needs, or is not written as gemmgen writes it"
    for name, text in ((EMULATOR_FILE, emulator_evidence(used.values())), (FIELD_FILE, field_evidence(quoted))):
        stored = folder.text(f"{EVIDENCE}/{name}")
        if stored is not None and stored != text:
            report.problems.append(Problem(f"{EVIDENCE}/{name}", "stale", why))


def _read_tables(folder: LibraryFolder, report: CheckReport) -> None:
    """Every table of tuned instances can be read."""
    from gemmgen.dispatch.table import read_table

    for path in sorted((folder.path / TUNED).glob("*.json")):
        try:
            read_table(path)
        except SpecError as error:
            why = f"{str(error).removeprefix(f'{path}: ')}; restore it, or make it anew with: gemmgen tune"
            report.problems.append(Problem(f"{TUNED}/{path.name}", "damaged", why))


def _check_again(
    listing: Listing,
    instances: list[Instance],
    facts: dict[tuple[str, str], Facts],
    evidence: Evidence,
    report: CheckReport,
    jobs: int,
    progress: Progress,
) -> None:
    """Compiles instances for all their architectures and verifies one program of each."""
    targets = [(instance, name, plan) for instance in instances for name, plan in instance.plans.items()]
    try:
        compiled = compile_facts(listing, targets, jobs, progress)
    except EnvironmentMissing as error:
        report.problems.append(Problem(".", "unchecked", str(error)))
        return
    first: dict[str, tuple[Instance, str]] = {}
    others: list[tuple[Instance, str]] = []
    for instance, architecture, _ in targets:
        recorded, fresh = facts.get((instance.name, architecture)), compiled[instance.name, architecture]
        if recorded is None:
            continue
        report.compiled += 1
        name = instance.certificate_file
        if (recorded.program, recorded.code) != (fresh.program, fresh.code):
            # NVRTC chooses between equal programs by where its data lie in memory, which differs between processes: of 80 certificates
            # drawn, 8 are of another choice. The program at hand is proven in place of the recorded one.
            report.notes.append(
                f"{name}, {architecture}: the compiler makes other PTX of the source than it was certified with, which is verified instead"
            )
            others.append((instance, architecture))
        elif recorded.kernels != fresh.kernels and not (recorded.spills or fresh.spills):
            report.problems.append(Problem(name, "wrong", f"{architecture}: registers or memory differ from the compiler's output"))
        else:
            first.setdefault(instance.name, (instance, architecture))
    tasks = [*first.values(), *others]
    for done, (index, result) in enumerate(run_tasks(prove, [(instance.path, name) for instance, name in tasks], jobs)):
        progress("verifying", done + 1, len(tasks))
        instance, architecture = tasks[index]
        name = instance.certificate_file
        if isinstance(result, GemmgenError):
            report.problems.append(Problem(name, "wrong", str(result)))
            continue
        if isinstance(result, Exception):
            raise result
        report.verified += 1
        recorded_run = evidence.emulator.get((result["program"], result["cases"]))
        if recorded_run is not None and recorded_run["traffic"] != result["traffic"]:
            why = "the emulator counts other wavefronts or sectors than the record of evidence says"
            report.problems.append(Problem(name, "wrong", why))


def _first_difference(actual: str, expected: str) -> str:
    """First difference between two texts, in words."""
    for number, (got, need) in enumerate(zip(actual.splitlines(), expected.splitlines(), strict=False), start=1):
        if got != need:
            return f"line {number} is {_short(got)}, a build writes {_short(need)}"
    return f"it has {len(actual.splitlines())} lines, a build writes {len(expected.splitlines())}"


def _short(line: str) -> str:
    line = line.strip()
    return repr(line if len(line) <= 60 else f"{line[:57]}...")
