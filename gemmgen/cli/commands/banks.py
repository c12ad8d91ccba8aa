"""``gemmgen banks``: the cost of any access to shared memory, and the effect of padding or a swizzle."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from gemmgen.cli.options import NAMED_PATH, json_option
from gemmgen.cli.output import Column, counted, print_json, print_table
from gemmgen.cli.selection import tell_written

if TYPE_CHECKING:
    from gemmgen.present.access_pattern import Pattern


@click.command("banks")
@click.argument("pattern")
@click.option("--width", type=click.Choice(["1", "2", "4", "8", "16"]), default="4", show_default=True, help="Bytes per lane.")
@click.option(
    "--store",
    is_flag=True,
    help="The access is a store; else a load, for which neighbouring lanes that read the same word are served together.",
)
@click.option("--row", type=click.IntRange(4, 1 << 18), metavar="BYTES", help="Bytes of a row of the tile, for paddings and swizzles.")
@click.option("-o", "--output", type=NAMED_PATH, metavar="FILE", help="Draw the access, and the best other layout, as SVG, PNG or PDF.")
@json_option
def command(pattern: str, width: str, store: bool, row: int | None, output: Path | None, as_json: bool) -> None:
    """Show how one warp's access to shared memory maps to the 32 banks, and the number of wavefronts it costs.

    PATTERN is the byte offset of each lane: a formula of lane, or up to 32 numbers separated by commas; -1 means that the lane is inactive.

    \b
    gemmgen banks 'lane*16' --width 16
    gemmgen banks 'lane%8*256 + lane//8*16' --width 16 --row 256
    gemmgen banks 'select(lane < 16, lane*8, -1)' --width 8 --store
    """
    from gemmgen.present.access_pattern import examine, picture_of

    pattern_cost = examine(pattern, int(width), store=store, row=row)
    if output is not None:
        from gemmgen.cli.pictures import write_picture
        from gemmgen.present.drawing import draw

        changed = write_picture(output, draw(pattern, [picture_of(pattern_cost)]))
        tell_written(output, changed, err=as_json)
    if as_json:
        print_json(_to_json(pattern_cost))
        return
    _print(pattern_cost)


def _print(pattern: Pattern) -> None:
    from gemmgen.hardware.shared_memory import served_groups

    cost = pattern.given.cost
    what = f"{'store' if pattern.store else 'load'} of {pattern.width} bytes a lane"
    click.echo(f"{what}: {counted(cost.wavefronts, 'wavefront')}, {counted(cost.conflicts, 'conflict')}; {pattern.ideal} at best\n")
    rows = []
    for group in served_groups(pattern.given.offsets, pattern.width, store=pattern.store):
        worst = [bank for bank, words in enumerate(group.bank_words) if words == group.wavefronts] if group.wavefronts > 1 else []
        touched = sum(words > 0 for words in group.bank_words)
        lanes = f"{group.first_lane}–{group.first_lane + group.lanes - 1}"
        rows.append([lanes, str(touched), str(group.wavefronts), _ranges(worst)])
    columns = [Column("lanes"), Column("banks", "right"), Column("wavefronts", "right"), Column("conflicts in banks", folds=True)]
    print_table(columns, rows)
    if pattern.merged:
        click.echo("Neighbouring groups are served together: every lane i reads the word of lane i^1, or every lane that of lane i^2.")
    click.echo("\nOther layouts:\n")
    layouts = [[one.title, str(one.cost.wavefronts), str(one.cost.conflicts)] for one in pattern.variants]
    print_table([Column("layout", folds=True), Column("wavefronts", "right"), Column("conflicts", "right")], layouts)


def _ranges(banks: list[int]) -> str:
    from gemmgen.kernels.pictures import runs

    return ", ".join(str(first) if count == 1 else f"{first}–{first + count - 1}" for first, count in runs(banks))


def _to_json(pattern: Pattern) -> dict[str, object]:
    from gemmgen.hardware.shared_memory import served_groups

    return {
        "pattern": pattern.text,
        "width": pattern.width,
        "store": pattern.store,
        "row": pattern.row,
        "ideal": pattern.ideal,
        "merged": pattern.merged,
        "layouts": [
            {
                "title": one.title,
                "offsets": list(one.offsets),
                "wavefronts": one.cost.wavefronts,
                "conflicts": one.cost.conflicts,
                "groups": [
                    {
                        "first_lane": group.first_lane,
                        "lanes": group.lanes,
                        "bank_words": list(group.bank_words),
                        "wavefronts": group.wavefronts,
                    }
                    for group in served_groups(one.offsets, pattern.width, store=pattern.store)
                ],
            }
            for one in pattern.variants
        ],
    }
