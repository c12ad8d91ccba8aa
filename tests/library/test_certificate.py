from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from gemmgen.codegen.templates import environment, recorded_macros, used_text
from gemmgen.core.formulas import Formula
from gemmgen.library.building import keep_facts
from gemmgen.library.certificate import make_certificate
from gemmgen.library.compiled import Facts, kept_facts
from gemmgen.library.digests import program_digests
from gemmgen.library.evidence import Evidence, evidence_text, read_evidence
from gemmgen.library.folder import LibraryFolder
from gemmgen.library.json_text import WIDTH, to_text
from gemmgen.library.listing import Instance, Listing, read_listing
from gemmgen.library.over_field import field_record
from gemmgen.library.sections import joined, separated
from library.conftest import section

ABSOLUTE_PATH = re.compile(r'"/|(?:^|[\s\'=(,;])/[A-Za-z_][\w.-]*/|\b[A-Za-z]:\\\\')
"""A path of one particular machine: from the root, or from a drive."""
GENERATED = Path(__file__).parents[2] / "generated"


def small(listing: Listing) -> Instance:
    return next(found for found in listing.instances if found.label == "gemm/small")


def record(certificate: dict[str, object], **more: object) -> dict[str, object]:
    digests = certificate["digests"]
    assert isinstance(digests, dict)
    own = {name: digests[name] for name in ("program", "code", "source", "options")}
    common = {"instance": "small", "architecture": "sm_90", "backend": "gpu", "device": "H200", "date": "2026-01-02", "compiler": "13.0"}
    return {**common, **own, **more}


def certified(listing: Listing, folder: LibraryFolder, *records: dict[str, object], **facts: object) -> dict[str, object]:
    """The certificate of the small product with more evidence."""
    instance = small(listing)
    known = section(folder, instance)
    evidence = read_evidence(folder.evidence)
    for found in records:
        evidence.add({**record(known), **found})
    kept = Facts(known["digests"]["program"], known["digests"]["code"], known["binary"])
    others = keep_facts(listing, folder, listing.targets())
    facts = {name: kept if name == "sm_90" else others[instance.name, name] for name in instance.plans}
    return separated(make_certificate(listing, instance, facts, evidence))["sm_90"]


def test_a_host_can_launch_from_the_certificate_alone(listing: Listing, folder: LibraryFolder) -> None:
    for path in sorted(folder.path.glob("*/*/*.json")):
        launch = json.loads(path.read_text())["launch"]
        problem, example = launch["example"]["problem"], launch["example"]
        assert Formula(launch["workspace_bytes"]).evaluate(problem) == example["workspace_bytes"]
        for described, resolved in zip(launch["launches"], example["launches"], strict=True):
            assert [Formula(extent).evaluate(problem) for extent in described["grid"]] == resolved["grid"]
            assert Formula(described["dynamic_shared_bytes"]).evaluate(problem) == resolved["dynamic_shared_bytes"]
            assert described["declaration"].startswith(f'extern "C" __global__ void {described["entry"]}(')
            assert described["declaration"].count(",") == len(described["arguments"]) - 1
        names = {argument["name"] for argument in launch["arguments"]}
        assert {name for described in launch["launches"] for name in described["arguments"]} <= names
        assert all(Formula(constraint["condition"]).evaluate(problem) for constraint in launch["constraints"])


def test_a_certificate_names_its_verdict_and_numeric_class(listing: Listing, folder: LibraryFolder) -> None:
    for instance in listing.instances:
        known = section(folder, instance)
        assert known["field"]["claim"].startswith("passed, wrong with probability below 2^-")
        assert known["field"]["architecture"] in instance.plans
        if instance.spec.kind == "gemm":
            assert known["numeric_class"] == {"terms": 4096, "name": "f32, fma"}


def test_every_committed_gemm_names_its_class_or_why_it_has_none() -> None:
    listing = read_listing()
    named = Counter[bool]()
    for instance in listing.instances:
        for architecture, known in separated(json.loads((GENERATED / instance.certificate_file).read_text())).items():
            if instance.spec.kind == "gemm":
                found = known["numeric_class"]
                assert found["terms"] == 4096, (instance.label, architecture)
                assert found["name"] or found["reason"], (instance.label, architecture)
                named[found["name"] is not None] += 1
            assert known["field"]["claim"], (instance.label, architecture)
    assert named[True] > 200


def test_a_certificate_says_where_nothing_ran_on_a_device(listing: Listing, folder: LibraryFolder) -> None:
    for instance in listing.instances:
        for architecture, known in separated(json.loads((folder.path / instance.certificate_file).read_text())).items():
            ran = any(record["backend"] != "emulator" for record in known["verification"])
            assert architecture in instance.plans
            assert known["device_evidence"] == (None if ran else "emulated, never run on the device")
            assert known["bits_not_confirmed"] == list(instance.plans[architecture].bits_not_confirmed)


def test_a_run_is_quoted_while_source_or_code_are_the_same(listing: Listing, folder: LibraryFolder) -> None:
    instance, evidence = small(listing), read_evidence(folder.evidence)
    facts = keep_facts(listing, folder, listing.targets())
    own = {name: facts[instance.name, name] for name in instance.plans}
    found = field_record(evidence, instance, own)
    assert found is not None
    for changes, quoted in (
        ({"source": ""}, True),
        ({"code": ""}, True),
        ({"source": "", "code": ""}, False),
        ({"method": -1}, False),
        ({"options": ""}, False),
    ):
        assert (field_record(Evidence(over_field=[{**found, **changes}]), instance, own) is not None) == quoted, changes


def test_no_certificate_names_place_or_user_of_machine(root: Path, folder: LibraryFolder) -> None:
    for path in folder.path.rglob("*.json"):
        assert not ABSOLUTE_PATH.search(path.read_text()), path.name


@pytest.mark.parametrize("text", ['"/a"', "in /home/me/file.cu", "(/opt/cuda/bin)", "at C:\\\\code"])
def test_an_absolute_path_is_recognised(text: str) -> None:
    assert ABSOLUTE_PATH.search(text)


@pytest.mark.parametrize("text", ["m // 2 / n", "ceil_div(m, 2)/3", "gemm/small.yaml", "FLOP/s and B/s"])
def test_a_quotient_is_no_absolute_path(text: str) -> None:
    assert not ABSOLUTE_PATH.search(text)


def test_each_access_site_is_predicted_with_its_line(listing: Listing, folder: LibraryFolder) -> None:
    instance = small(listing)
    predicted = section(folder, instance, "sm_80")["predicted"]
    lines = instance.source.text.splitlines()
    assert predicted["wavefronts"] > 0 and predicted["sectors"] > 0
    assert all(lines[site["line"] - 1].strip() == site["source"] != "" for site in predicted["sites"])
    assert sum(kind["sectors"] for site in predicted["sites"] for kind in site.get("global", {}).values()) == predicted["sectors"]


def test_the_newest_verification_of_each_device_counts(listing: Listing, folder: LibraryFolder) -> None:
    passed = {"passed": True, "cases": 1, "elements": 1, "worst_ratio": 0.5}
    certificate = certified(
        listing,
        folder,
        {"verification": passed, "date": "2026-02-01"},
        {"verification": {**passed, "cases": 2}, "date": "2026-01-01"},
        {"verification": {**passed, "cases": 3}, "device": "A100"},
    )
    found = certificate["verification"]
    assert isinstance(found, list)
    assert [(item["device"], item["cases"]) for item in found][1:] == [("H200", 1), ("A100", 3)]
    assert found[0]["backend"] == "emulator"


def test_benchmarks_are_kept_by_problem_and_device(listing: Listing, folder: LibraryFolder) -> None:
    def item(m: int, time: float) -> dict[str, object]:
        return {"problem": {"m": m}, "scalars": {}, "median_us": time, "peer": None}

    certificate = certified(
        listing,
        folder,
        {"benchmarks": [item(1, 9.0), item(2, 4.0)], "date": "2026-01-01"},
        {"benchmarks": [item(1, 8.0)], "date": "2026-01-05"},
    )
    found = certificate["benchmarks"]
    assert isinstance(found, list)
    shown = [(entry["problem"]["m"], entry["median_us"], entry["date"]) for entry in found]
    assert shown == [(1, 8.0, "2026-01-05"), (2, 4.0, "2026-01-01")]


def test_evidence_about_other_code_is_not_quoted(listing: Listing, folder: LibraryFolder) -> None:
    passed = {"passed": True, "cases": 1, "elements": 1, "worst_ratio": 0.5}
    other: dict[str, object] = {"code": "0" * 64, "verification": passed}
    assert len(certified(listing, folder, {**other, "source": "0" * 64})["verification"]) == 1  # type: ignore[arg-type]
    assert len(certified(listing, folder, {**other, "architecture": "sm_80"})["verification"]) == 1  # type: ignore[arg-type]
    assert len(certified(listing, folder, {**other, "options": "0" * 64})["verification"]) == 1  # type: ignore[arg-type]
    assert len(certified(listing, folder, other)["verification"]) == 2  # type: ignore[arg-type]


def test_facts_are_kept_only_for_same_source_options_and_release(listing: Listing, folder: LibraryFolder) -> None:
    certificate = section(folder, small(listing))
    digests = certificate["digests"]
    assert kept_facts(certificate, digests["source"], digests["options"], "13.0") is not None
    assert kept_facts(certificate, "0", digests["options"], "13.0") is None
    assert kept_facts(certificate, digests["source"], "0", "13.0") is None
    assert kept_facts(certificate, digests["source"], digests["options"], "13.1") is None


def test_programs_are_the_same_under_other_targets_and_names() -> None:
    ptx = "// CL-1\n.version 8.7\n.target {}\n.visible .entry {}() {{\n\t.loc\t1 {} 3\n\tret; // done\n}}\n"
    values = (("sm_80", "k", 4), ("sm_90", "k", 4), ("sm_80", "other", 4), ("sm_80", "k", 5))
    one, other, renamed, moved = (program_digests(ptx.format(*value), value[1]) for value in values)
    assert one == other == renamed
    assert moved["program"] != one["program"] and moved["code"] == one["code"]
    assert program_digests(ptx.format("sm_80", "k", 4).replace("ret", "exit"), "k")["code"] != one["code"]


def test_a_macro_that_no_kernel_calls_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    block = (
        "{% macro used(n) %}{{ helper(n) }}{% endmacro %}\n{% macro helper(n) %}{{ n }}{% endmacro %}\n{% macro idle(n) %}no{% endmacro %}"
    )
    (tmp_path / "a" / "block.cu.j2").write_text(block)
    (tmp_path / "a" / "kernel.cu.j2").write_text("int x = {{ block.used(1) }};\n{% macro unused() %}never{% endmacro %}\n")

    def text() -> str:
        with recorded_macros() as used:
            assert environment(tmp_path).get_template("a/kernel.cu.j2").render() == "int x = 1;\n"
        return used_text(tmp_path, "a/kernel.cu.j2", used)

    before = text()
    assert "helper" in before and "idle" not in before and "never" not in before
    (tmp_path / "a" / "block.cu.j2").write_text(block.replace("no{", "not at all{"))
    assert text() == before
    (tmp_path / "a" / "block.cu.j2").write_text(block.replace("{{ n }}", "{{ n }}{# a comment #}"))
    assert text() != before


def test_what_architectures_have_in_common_stands_once(listing: Listing, folder: LibraryFolder) -> None:
    certificate = folder.certificate(small(listing).certificate_file)
    assert joined(separated(certificate)) == certificate
    assert list(separated(certificate)) == list(small(listing).plans)
    assert "launch" in certificate and not any("launch" in one for one in certificate["architectures"].values())


def test_code_under_another_name_has_the_digest_that_it_had() -> None:
    ptx = ".visible .entry {0}() {{\n\t.shared .b8 _ZZ{1}{0}E4tile[4];\n}}\n"
    old = program_digests(ptx.format("long_name", 9), "long_name")
    assert program_digests(ptx.format("k", 1), "k") != old
    assert program_digests(ptx.format("k", 1), "k", "long_name") == old


def test_json_is_folded_and_reads_back() -> None:
    data = {"short": [1, 2.5, None, True], "long": [{"text": "x" * 60, "more": "y" * 60, "ü": {"deep": list(range(60))}}], "empty": []}
    text = to_text(data)
    assert json.loads(text) == data
    assert '"short": [1, 2.5, null, true]' in text
    assert max(map(len, text.splitlines())) <= WIDTH


def test_a_file_of_evidence_reads_back_as_it_was(tmp_path: Path) -> None:
    run = {"backend": "gpu", "device": "H200", "date": "2026-01-02", "compiler": "13.0"}
    own = {"instance": "b", "architecture": "sm_90", "program": "0", "code": "1", "source": "2", "options": "3"}
    (tmp_path / "h200.json").write_text(evidence_text(run, [{**run, **own}]))
    assert read_evidence(tmp_path).seen_on_gpus("sm_90", codes={"1"}, source="x", options="3") == [{**run, **own}]
    assert read_evidence(tmp_path / "none") == Evidence()
