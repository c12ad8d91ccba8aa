"""``gemmgen prove``."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

pytest.importorskip("z3")

from gemmgen.cli import cli
from gemmgen.present.web.pages import page


def test_a_kernel_is_proved_and_required_to_be() -> None:
    result = CliRunner().invoke(cli, ["prove", "gemm/v0_naive", "--require", "all", "--json"])
    assert result.exit_code == 0, result.output
    (found,) = json.loads(result.stdout)
    assert "lda >= k" in found["domain"]
    assert [each["status"] for each in found["kernels"][0]["properties"]] == ["proved"] * 7


def test_required_properties_must_be_proved() -> None:
    arguments = ["prove", "gemm/v0_naive", "--seconds", "1", "--set", "architecture=sm_80"]
    lenient = CliRunner().invoke(cli, ["prove", "reduction/s8_streaming"])
    assert lenient.exit_code == 0 and "was not proved to end" in lenient.stdout, lenient.output
    strict = CliRunner().invoke(cli, ["prove", "reduction/s8_streaming", "--require", "progress"])
    assert strict.exit_code == 1
    assert CliRunner().invoke(cli, [*arguments, "--require", "speed"]).exit_code == 2


def test_a_property_not_asked_of_a_kernel_cannot_be_required() -> None:
    assert CliRunner().invoke(cli, ["prove", "reduction/s0_interleaved", "--require", "coverage"]).exit_code == 1


def test_the_page_of_a_kernel_names_what_is_proved() -> None:
    nothing = dict.fromkeys(("title", "summary", "bound", "least", "device", "case", "sass_missing"), "")
    empty = dict.fromkeys(("causes", "cuda", "ptx", "sass", "pictures"), ())
    text = page("view.html.j2", **nothing, **empty, proved="memory, races")
    assert "Proved for all sizes that the launch accepts: memory, races." in text


def test_a_missing_spec_is_a_mistake_of_the_user() -> None:
    assert CliRunner().invoke(cli, ["prove", "gemm/no_such_kernel"]).exit_code == 2
