"""Output of the library and its certificates: a table of all instances, and one instance in words."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from gemmgen.cli.output import Column, count, counted, print_table, styled
from gemmgen.core.text import printable

if TYPE_CHECKING:
    from rich.text import Text

    from gemmgen.library.folder import LibraryFolder

Entry = Mapping[str, Any]


def print_list(entries: Sequence[Entry], folder: LibraryFolder) -> None:
    """The instances in the order of their specs, with a summary of their certificates."""
    rows: list[list[str | Text]] = []
    for entry in sorted(entries, key=lambda entry: (entry["kind"], entry["spec_name"])):
        certificates = list(folder.certificates(entry).values())
        rows.append(
            [
                entry["spec_name"],
                " ".join(name.removeprefix("sm_") for name in entry["architectures"]),
                _range([_registers(certificate) for certificate in certificates]),
                _verified(entry, certificates),
                _proved(certificates),
                _beside_peers(certificates),
                entry["description"],
            ]
        )
    print_table(
        [
            Column("spec", folds=True),
            Column("sm"),
            Column("registers", "right"),
            Column("verified"),
            Column("proved"),
            Column("beside peer", "right"),
            Column("purpose", folds=True),
        ],
        rows,
    )
    click.echo(f"\n{counted(len(entries), 'instance')}. Beside peer: the peer's time over the instance's, from its worst to its best size.")


def _proved(certificates: Sequence[Entry]) -> str:
    """Properties that were proved on at least one architecture."""
    claims = [name for certificate in certificates if certificate["proved"] is not None for name in certificate["proved"]["proved"]]
    return " ".join(dict.fromkeys(claims))


def print_certificates(entry: Entry, certificates: Sequence[Entry]) -> None:
    """One instance: its spec, its launch, and the evidence for each architecture."""
    first = certificates[0]
    click.echo(click.style(entry["name"], fg="cyan", bold=True))
    click.echo(printable(f"{entry['description']}\nSpec {entry['spec_name']}, source {entry['source']}"))
    _title("Launch")
    for launch in first["launch"]["launches"]:
        grid, block = ", ".join(map(_plain, launch["grid"])), ", ".join(map(str, launch["block"]))
        click.echo(printable(f"  {launch['declaration']}"))
        click.echo(printable(f"    grid {grid}; block {block}; dynamic shared memory {launch['dynamic_shared_bytes']} bytes"))
    for argument in first["launch"]["arguments"]:
        click.echo(printable(f"  {argument['name']}: {_argument(argument)}"))
    for constraint in first["launch"]["constraints"]:
        click.echo(printable(f"  needs {_plain(constraint['condition'])}: {constraint['explanation']}"))
    size, zero = first["launch"]["workspace_bytes"], first["launch"]["workspace_zero_bytes"]
    if size != "0":
        zeroed = f", of which the first {zero} must be zero before the first launch" if zero != "0" else ""
        click.echo(printable(f"  the workspace has {size} bytes{zeroed}"))
    _title("Compiled")
    rows: list[list[str | Text]] = []
    for certificate in certificates:
        for name, kernel in certificate["binary"].items():
            occupancy = certificate["occupancy"][name]
            spills = kernel["spill_stores"] + kernel["spill_loads"]
            rows.append(
                [
                    certificate["architecture"],
                    name.removeprefix(entry["name"]).strip("_") or "main",
                    str(kernel["registers"]),
                    styled(count(spills), "red") if spills else "",
                    count(occupancy["shared_bytes"]),
                    f"{occupancy['fraction']:.0%}",
                    " ".join(occupancy["limited_by"]),
                ]
            )
    right = [Column(title, "right") for title in ("registers", "spills", "shared", "occupancy")]
    print_table([Column("arch"), Column("kernel"), *right, Column("limited by", folds=True)], rows)
    compiler = first["compiler"]
    click.echo(printable(f"By {compiler['name']} {compiler['release']} with {' '.join(compiler['options'])}"))
    for certificate in certificates:
        _print_evidence(certificate)
    _print_classes(first)
    _print_predicted(first)


def print_obstacles(records: Sequence[Mapping[str, Any]]) -> None:
    """The statements in the way of properties that are not proved; one line for properties with the same obstacle."""
    properties: dict[str, list[str]] = {}
    for record in records:
        for obstacle in record.get("obstacles", ()):
            name, _, reason = obstacle.partition(": ")
            names = properties.setdefault(reason, [])
            names += [name] if name not in names else []
    if properties:
        _title("Not proved for all sizes")
    for reason, names in properties.items():
        click.echo(printable(f"  {', '.join(names)}: {reason}"))


def _print_evidence(certificate: Entry) -> None:
    _title(f"Evidence for {certificate['architecture']}")
    for item in certificate["verification"]:
        same = f", as {item['architecture']}, whose PTX is the same" if item["architecture"] != certificate["architecture"] else ""
        outcome = f"error/bound at most {item['worst_ratio']:g}" if item["passed"] else f"WRONG: {item['failure']}"
        cases = f"{counted(item['cases'], 'case')}, {count(item['elements'])} elements"
        click.echo(printable(f"  {item['date']}  verified on {item['device']}{same}: {cases}, {outcome}"))
    if not certificate["verification"]:
        click.echo("  not verified")
    if certificate["proved"] is not None:
        proved = certificate["proved"]
        whole = f"proved for all sizes: {', '.join(proved['proved']) or 'nothing of all kernels'}"
        parts = (
            ""
            if len(proved["kernels"]) == 1
            else f" (by kernel: {'; '.join(', '.join(names) or 'nothing' for names in proved['kernels'])})"
        )
        click.echo(printable(f"  {proved['date']}  {whole}{parts}"))
    for item in certificate["sanitizer"]:
        outcome = "nothing found" if item["passed"] else f"FOUND: {item['failure']}"
        click.echo(
            printable(
                f"  {item['date']}  compute-sanitizer {item['tool']} on {item['device']}, {counted(item['cases'], 'case')}: {outcome}"
            )
        )
    for item in certificate["benchmarks"]:
        problem = " ".join(f"{name}={value}" for name, value in item["problem"].items())
        peer = item.get("peer")
        beside = f"; {peer['name']} {peer['median_us']:g} µs: {peer['speedup']:.2f}x" if peer else ""
        click.echo(printable(f"  {item['date']}  {item['median_us']:g} µs on {item['device']} for {problem}{beside}"))


def _print_classes(certificate: Entry) -> None:
    """The verdict over a finite field, the numeric class, and products without confirmed bits; certificates made before these were recorded
    have none of them."""
    over_field, numeric = certificate.get("field"), certificate.get("numeric_class")
    if over_field:
        _title("All data")
        click.echo(printable(f"  {over_field['date']}  field: {over_field['claim']} (as {over_field['architecture']})"))
    if numeric:
        _title("Numeric class")
        name = numeric["name"] or f"none: {numeric['reason']}"
        click.echo(printable(f"  {name} (sums of {count(numeric['terms'])} terms)"))
    if unconfirmed := certificate.get("bits_not_confirmed"):
        _title("Bits")
        click.echo(printable(f"  not confirmed: {', '.join(unconfirmed)}"))


def _print_predicted(certificate: Entry) -> None:
    predicted = certificate["predicted"]
    if predicted is None:
        return
    problem = " ".join(f"{name}={value}" for name, value in predicted["problem"].items())
    _title(f"Predicted memory traffic ({predicted['case']}: {problem})")
    rows: list[list[str | Text]] = []
    for site in predicted["sites"]:
        shared = site.get("shared", {}).values()
        traffic = site.get("global", {}).values()
        conflicts = sum(item["conflicts"] for item in shared)
        rows.append(
            [
                str(site["line"]),
                site["source"],
                _number(sum(item["wavefronts"] for item in shared)),
                styled(count(conflicts), "red") if conflicts else "",
                _number(sum(item["ideal"] for item in shared)),
                _number(sum(item["sectors"] for item in traffic)),
                _number(sum(item["ideal"] for item in traffic)),
            ]
        )
    right = [Column(title, "right") for title in ("wavefronts", "conflicts", "ideal", "sectors", "ideal")]
    print_table([Column("line", "right"), Column("source", folds=True), *right], rows)


def _plain(formula: str) -> str:
    """A formula without needless parentheses."""
    try:
        return ast.unparse(ast.parse(formula, mode="eval"))
    except (SyntaxError, ValueError):
        return formula


def _argument(argument: Entry) -> str:
    if argument["kind"] == "array":
        shape, strides = (", ".join(map(_plain, argument[field])) for field in ("shape", "strides"))
        return (
            f"{argument['type']}[{shape}], strides ({strides}), {argument['role']}, aligned to {argument['alignment']} bytes: "
            f"{argument['meaning']}"
        )
    if argument["kind"] == "host":
        return f"struct {argument['struct']} of {argument['bytes']} bytes, computed on the host: {argument['meaning']}"
    if argument["kind"] == "tensor_map":
        extents = ", ".join(map(_plain, argument["extents"]))
        return f"tensor map of {argument['array']}, {argument['element']}[{extents}] (innermost first): {argument['meaning']}"
    default = "" if argument["default"] is None else f" (else {argument['default']:g})"
    return f"{argument['type']}{default}: {argument['meaning']}"


def _registers(certificate: Entry) -> int:
    return max(int(kernel["registers"]) for kernel in certificate["binary"].values())


def _range(values: Sequence[int]) -> str:
    if not values:
        return ""
    return str(values[0]) if min(values) == max(values) else f"{min(values)}-{max(values)}"


def _verified(entry: Entry, certificates: Sequence[Entry]) -> str | Text:
    """The backends that all, or some, of the certificates name."""
    runs = [item for certificate in certificates for item in certificate["verification"]]
    wrong = [item for item in runs if not item["passed"]]
    if wrong:
        return styled(f"WRONG on {wrong[0]['device']}", "bold red")
    if len(certificates) < len(entry["architectures"]) or not all(certificate["verification"] for certificate in certificates):
        return styled("not all", "yellow")
    backends = dict.fromkeys(item["backend"] for item in runs)
    over_field = certificates[0].get("field") or {}
    return ", ".join([*backends, *(["field"] if over_field.get("outcome") == "passed" else [])])


def _beside_peers(certificates: Sequence[Entry]) -> str:
    speedups = [item["peer"]["speedup"] for certificate in certificates for item in certificate["benchmarks"] if item.get("peer")]
    if not speedups:
        return ""
    low, high = f"{min(speedups):.2f}", f"{max(speedups):.2f}"
    return low if low == high else f"{low}-{high}"


def _number(value: int) -> str:
    return count(value) if value else ""


def _title(text: str) -> None:
    click.echo("\n" + click.style(text, bold=True))
