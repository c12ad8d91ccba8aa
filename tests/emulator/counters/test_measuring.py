"""The program that measures counters: what it measures first, and what it takes from a run that ended early."""

import json

from measurements.counters import in_order, read_journal

ROWS = [
    {"spec": "specs/gemm/a.yaml", "ptx": "1", "dimensions": {"m": 64, "n": 64}},
    {"spec": "specs/gemm/b.yaml", "ptx": "2", "dimensions": {"m": 8, "n": 8}},
    {"spec": "specs/gemm/c.yaml", "ptx": "3", "dimensions": {"m": 8, "n": 16}},
    {"spec": "specs/conv2d/d.yaml", "ptx": "4", "dimensions": {"n": 999}},
    {"spec": "specs/conv2d/e.yaml", "ptx": "5", "dimensions": {"n": 1}, "measured": {}},
    {"spec": "specs/conv2d/f.yaml", "error": "no such thing"},
]


def test_cheap_cases_of_every_folder_come_first():
    assert [spec[-6] for spec in in_order(ROWS)] == ["d", "b", "c", "a"]


def test_a_journal_counts_for_the_same_code_only(tmp_path):
    journal = tmp_path / "counters.journal"
    entries = [{"spec": "specs/gemm/a.yaml", "ptx": ptx, "profiles": [{"metric": value}]} for ptx, value in (("1", 7.0), ("old", 8.0))]
    journal.write_text("".join(json.dumps(entry) + "\n" for entry in entries) + '{"spec": "specs/gemm/b.ya')
    assert read_journal(journal, ROWS) == {"specs/gemm/a.yaml": [{"metric": 7.0}]}


def test_without_a_journal_nothing_is_known(tmp_path):
    assert read_journal(tmp_path / "none", ROWS) == {}
